"""Labels of the nodes that features write and searches return."""

from __future__ import annotations

from typing import Final

MEMORY_LABEL: Final = "Memory"
NOT_PINNED: Final = "coalesce(m.pinned, false) = false"
"""The condition that a memory ``m`` may be forgotten by age or number, and summarized if it is ``LASTING``."""
LASTING: Final = "m.expires_at IS NULL"
"""The condition that a memory ``m`` has no end of its own: a summary would outlive it."""
VERSION: Final = "MemoryVersion"
"""What a memory said before it was updated."""
SUMMARY: Final = "ConversationSummary"
FACT: Final = "Fact"
PREFERENCE: Final = "Preference"
STATEMENT: Final = "Statement"
JUDGED: Final = "JUDGED"
"""The type of what a model says of two statements, from the later one to the earlier."""
PROFILE: Final = "UserProfile"
EPISODE: Final = "Episode"
ENTITY: Final = "Entity"
RELATION: Final = "Relation"
