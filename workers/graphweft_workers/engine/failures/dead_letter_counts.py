"""Counts of dead letters: how many events had no effect, by app, rule and cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import DeadLetter, DeadLetterReason

SKIPS: Final[frozenset[DeadLetterReason]] = frozenset({"skipped", "no_rules"})
"""Reasons that are not failures: a value or the rules were missing."""


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


def count_causes(letters: Iterable[DeadLetter]) -> list[DeadLetterCause]:
    """Return the causes, those with the most events first."""
    found: dict[tuple[str | None, ...], DeadLetterCause] = {}
    for letter in letters:
        # The message of a skip names the cause; that of a failure is about one event.
        detail = letter.message if letter.reason in SKIPS else None
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
