"""Counts of dead letters: how many events had no effect, by app, rule and cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import DeadLetter, DeadLetterReason

SKIPS: Final[frozenset[DeadLetterReason]] = frozenset({"skipped", "no_rules"})
"""Reasons that are not failures: a value or the rules were missing."""
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(slots=True, kw_only=True)
class DeadLetterCause:
    """One cause for which mutations, or whole events, had no effect."""

    app_id: str | None
    workflow: str | None
    rule: str | None
    mutation: str | None
    reason: DeadLetterReason
    message: str
    """Of the first dead letter."""
    place: str | None
    events: int = 0
    letters: int = 0

    @property
    def name(self) -> str:
        """The mutation; or the workflow if a whole event had no effect."""
        return f"{self.rule}/{self.mutation}" if self.rule else f"workflow {self.workflow or '(none)'}"


def _detail(letter: DeadLetter) -> str | None:
    """Return what tells causes of one mutation and reason apart; None if a message is about one event."""
    if letter.reason in SKIPS:
        return letter.message
    # The message says what is wrong where: "entities[3].type" and "entities[7].type" are one cause.
    return _NUMBERS.sub("0", letter.message) if letter.reason == "invalid_event" else None


def count_causes(letters: Iterable[DeadLetter]) -> list[DeadLetterCause]:
    """Return the causes, those with the most events first."""
    found: dict[tuple[str | None, ...], DeadLetterCause] = {}
    for letter in letters:
        detail = _detail(letter)
        names = (letter.app_id, letter.workflow, letter.rule, letter.mutation)
        cause = found.setdefault(
            (*names, letter.reason, detail),
            DeadLetterCause(
                app_id=letter.app_id,
                workflow=letter.workflow,
                rule=letter.rule,
                mutation=letter.mutation,
                reason=letter.reason,
                message=letter.message,
                place=letter.place,
            ),
        )
        cause.events += letter.count
        cause.letters += 1
    return sorted(found.values(), key=lambda cause: -cause.events)
