"""Which event types need more than the right to emit."""

from __future__ import annotations

from typing import Final

INTERNAL_TYPES: Final = frozenset({"memory.embedded", "memory.summarized", "episode.extracted", "statement.judged"})
"""Answers of models, which graphweft's workers emit. From anybody else they are forged: no gateway takes them, and
the key of an app signs none of them."""
ERASING_TYPES: Final = frozenset({"memory.erase", "memory.forget", "statement.unjudged"})
"""Events that remove what is remembered: of a user, a memory, or a verdict on a statement."""
