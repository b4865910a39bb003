"""The note of a plan: the events, the rows in their order, and the failed rows, as text in the graph.

Offsets that follow one another are a range, and so are numbers of events, so the note of a batch without gaps is short.
Notes of the format 1, which lists every offset and number, are read as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from graphweft_contracts import GraphUnavailable
from graphweft_workers.engine.plan.entry_mark import EntryMark, in_note

_FORMAT: Final = 2
"""Other versions of graphweft refuse a format that they do not know."""
_DIGITS: Final = "0123456789"
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanNote:
    """The content of a note."""

    end: str
    events: Sequence[str]
    """The offsets of the events that have rows."""
    steps: Sequence[tuple[str, str, Sequence[int]]]
    """Rule, mutation, and the numbers of the events, by ``events``: a row for each, in the order in which they run."""
    left_out: Mapping[str, Any] | None = None
    """Failed rows whose dead letter may not be written yet."""
    rules: str = ""
    """The digest of the rules."""
    entry: EntryMark | None = None
    """Of the entry at ``end``."""

    def encode(self) -> str:
        """Return the text for the graph."""
        steps = [(rule, mutation, _ranges(numbers)) for rule, mutation, numbers in self.steps]
        body: dict[str, Any] = {
            "format": _FORMAT, "end": self.end, "events": _runs(self.events), "steps": steps, "left_out": self.left_out,
        }  # fmt: skip
        if self.rules:
            body["rules"] = self.rules
        return compact(body | in_note(self.entry))

    @classmethod
    def decode(cls, text: str) -> PlanNote:
        """Read the text. Raises ``GraphUnavailable`` if it is not a note of a known format."""
        try:
            note = cast("Mapping[str, Any]", json.loads(text))
        except ValueError as error:
            raise GraphUnavailable(
                "the note of a half-done batch in the graph was overwritten: rebuild the graph from the log",
                retry_after_s=5.0,
            ) from error
        events, steps, written = note.get("events", []), note.get("steps", []), note.get("format")
        if written == _FORMAT:
            events = [offset for run in events for offset in _offsets(*run)]
            steps = [(rule, mutation, _numbers(ranges)) for rule, mutation, ranges in steps]
        elif written != 1:
            raise GraphUnavailable(
                "the graph holds a half-done batch of another version of graphweft: let that version finish it first",
                retry_after_s=5.0,
            )
        return cls(
            end=note["end"], events=events, steps=steps, left_out=note["left_out"], rules=str(note.get("rules", "")),
            entry=EntryMark.of_note(note),
        )  # fmt: skip


def compact(value: Any) -> str:
    """Return JSON without blanks, in a fifth of the time of ``json``."""
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, in the message of a server
        return json.dumps(value, separators=(",", ":"))


def _runs(offsets: Iterable[str]) -> list[tuple[str, int, int]]:
    """Return offsets as runs: the text before the last digits, the first number and the last one."""
    runs: list[tuple[str, int, int]] = []
    head, first, last = "", 0, 0
    following: str | None = None
    for offset in offsets:
        if offset == following:
            last += 1
            runs[-1] = (head, first, last)
        else:
            digits = offset[len(offset.rstrip(_DIGITS)) :].lstrip("0")
            head = offset.removesuffix(digits)
            # An offset without such digits is a run of its own, from a number that offsets do not have.
            first = last = int(digits or -1)
            runs.append((head, first, last))
        following = f"{head}{last + 1}" if last >= 0 else None
    return runs


def _offsets(head: str, first: int, last: int) -> list[str]:
    return [f"{head}{number}" for number in range(first, last + 1)] if first >= 0 else [head]


def _ranges(numbers: Sequence[int]) -> Sequence[int | tuple[int, int]]:
    """Return numbers as they are, or as one pair if each follows the one before."""
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return [(numbers[0], numbers[-1])]
    return numbers


def _numbers(ranges: Iterable[int | Sequence[int]]) -> list[int]:
    return [number for each in ranges for number in ((each,) if isinstance(each, int) else range(each[0], each[1] + 1))]
