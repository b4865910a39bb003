"""Rule sets and their activations, as people are shown them."""

from __future__ import annotations

from typing import Final

from graphweft_contracts.rules_log import SHARED_RULES

_SHORT: Final = 12
"""Digits of a hash that tell the rule sets of a deployment apart."""


def short_digest(digest: str) -> str:
    """Return the beginning of a rule set's hash."""
    return digest[:_SHORT]


def named_digest(digest: str) -> str:
    """Return the beginning of a rule set's hash and whether it stands for the default rules, or "as for all apps"."""
    from graphweft_workers.new_project import is_default

    if digest == SHARED_RULES:
        return "as for all apps"
    return f"{digest[:_SHORT]} (default rules)" if is_default(digest) else digest[:_SHORT]
