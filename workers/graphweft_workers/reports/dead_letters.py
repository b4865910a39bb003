"""Dead letters: those that somebody chooses, one with its event, and what became of a retry or a drop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from graphweft_contracts import DeadLetter, wire
from graphweft_contracts.plurals import counted
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with
from graphweft_workers.reports.report import Part

if TYPE_CHECKING:  # the bus answers before what replays is loaded
    from graphweft_workers.archive.log_gaps import LogGap

MOST_LETTERS: Final = 1_000_000_000
"""More dead letters than there can be."""
_DONE: Final = {
    "retried": ("event is back on the bus", "events are back on the bus"),
    "dropped": ("letter is dropped", "letters are dropped"),
}


async def letters_of_fields(bus: Bus, wanted: Mapping[str, str], limit: int) -> list[DeadLetter]:
    """Return the first ``limit`` letters with these values of fields, oldest first, without their events."""
    found = await bus.dead_letters.read(limit=MOST_LETTERS if wanted else limit, whole=False)
    return [each for each in found if all(getattr(each, name) == value for name, value in wanted.items())][:limit]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterList:
    """Dead letters without their events, oldest first."""

    letters: Sequence[DeadLetter]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return it as plain values, for JSON."""
        return [letter_dict(letter) for letter in self.letters]

    def parts(self) -> Iterator[Part]:
        """Yield it for people; not as a table, which would break the ids over lines."""
        if not self.letters:
            yield "no dead letters"
        for letter in self.letters:
            rule = f"{letter.rule}/{letter.mutation}" if letter.rule else ""
            what = (f"{letter.count:,} x {letter.reason}", letter.app_id, letter.event_type, rule, letter.place)
            yield f"{letter.id}\n    {'  '.join(filter(None, what))}\n    {letter.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterWithEvent:
    """One dead letter with its first event."""

    letter: DeadLetter
    payload: Mapping[bytes, bytes]
    """The fields of the event's entry on the bus."""

    @classmethod
    async def read(cls, bus: Bus, letter: DeadLetter) -> LetterWithEvent:
        """Read the event. Raises ``BusUnavailable``."""
        from graphweft_workers.engine.failures.letter_payloads import payload_of

        return cls(letter=letter, payload=wire.unpack(await payload_of(bus, letter)))

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the event's entry as text."""
        return {name.decode("latin-1"): value.decode(errors="backslashreplace") for name, value in self.payload.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return letter_dict(self.letter) | {"fields": self.fields}

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        for name, value in (letter_dict(self.letter) | self.fields).items():
            if name != "offsets":
                yield f"{name}: {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterChanges:
    """What became of dead letters that were to be retried or dropped."""

    what: Literal["retried", "dropped"]
    done: int
    """Events that are on the bus again, or letters that are dropped."""
    kept: Sequence[tuple[str, str]]
    """Letters that stay, each with the reason."""
    unknown: Sequence[str] = ()
    """Ids that no letter has."""
    accepted: Sequence[LogGap] = ()
    """What was accepted as lost, because a letter said that events are gone."""
    unrecorded: bool = False
    """Whether nothing could be accepted as lost, because there is no archive to record it."""

    @property
    def exit_code(self) -> int | None:
        """The exit code of a command: 2 for unknown ids, 1 if a letter stays."""
        return 2 if self.unknown else 1 if self.kept else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        kept = [{"id": letter_id, "why": why} for letter_id, why in self.kept]
        lost = [{"partition": each.partition, "first": each.first, "last": each.last} for each in self.accepted]
        accepted = {"accepted": lost} if lost else {}
        return {self.what: self.done, "left": len(kept), "kept": kept, "unknown": list(self.unknown)} | accepted

    def parts(self) -> Iterator[Part]:
        """Yield it for people."""
        stay = f"; {counted(len(self.kept), 'letter stays', 'letters stay')}" if self.kept else ""
        yield counted(self.done, *_DONE[self.what]) + stay
        for gap in self.accepted:
            yield f"{gap}: replays and erasures go on without what the log lacks there"
        if self.unrecorded:
            yield (
                "without GRAPHWEFT_ARCHIVE_URL nothing records that you accept the loss: replays and erasures still "
                "refuse a log that lacks entries"
            )
        for letter_id, why in self.kept:
            yield f"{letter_id} stays: {why}"
        if self.unknown:
            yield f"unknown: {', '.join(self.unknown)}; `graphweft dlq list` shows the ids"


async def retry_letters(
    bus: Bus, ids: Iterable[str], unknown: Sequence[str] = (), *, partial: bool = False, without_keys: bool = False
) -> LetterChanges:
    """Put the events of letters back on the bus; see ``engine.retries.retry``. Raises ``BusUnavailable``."""
    from graphweft_workers.engine.failures.retries import retry

    async def change(letter: DeadLetter) -> tuple[int, str | None]:
        done = await retry(bus, letter, partial=partial, without_keys=without_keys)
        return done.events, done.kept

    return await _change_each(bus, "retried", ids, unknown, change)


async def drop_letters(bus: Bus, ids: Iterable[str], unknown: Sequence[str] = (), *, by: str | None) -> LetterChanges:
    """Delete letters; see ``engine.retries.drop``. Raises ``BusUnavailable``.

    With a letter of events that are gone from the log, ``by`` accepts the loss of all that its partition lacks now, of
    whichever apps; None: somebody who must not.
    """
    from graphweft_workers.archive.log_gaps import accept_gaps
    from graphweft_workers.engine.failures.retries import drop

    accepted: list[LogGap] = []
    trimmed: set[int] = set()

    async def change(letter: DeadLetter) -> tuple[int, str | None]:
        if by is not None and letter.reason == "trimmed" and letter.partition not in trimmed:
            trimmed.add(letter.partition)
            accepted.extend([] if bus.archive is None else await accept_gaps(bus, [letter.partition], by=by))
        why = await drop(bus, letter)
        return int(why is None), why

    done = await _change_each(bus, "dropped", ids, unknown, change)
    return replace(done, accepted=accepted, unrecorded=bool(trimmed) and bus.archive is None)


async def _change_each(
    bus: Bus,
    what: Literal["retried", "dropped"],
    ids: Iterable[str],
    unknown: Sequence[str],
    change: Callable[[DeadLetter], Awaitable[tuple[int, str | None]]],
) -> LetterChanges:
    """Change each letter that is still there; ``change`` returns how much it did, and why the letter stays, if so."""
    total = 0
    kept: list[tuple[str, str]] = []
    for letter_id in ids:
        if (letter := await letter_with(bus.dead_letters, letter_id)) is not None:  # or it is gone meanwhile
            done, why = await change(letter)
            total += done
            if why is not None:
                kept.append((letter_id, why))
    return LetterChanges(what=what, done=total, kept=kept, unknown=unknown)


def letter_dict(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter without its event as plain values, for JSON."""
    shown = letter.model_dump(mode="json", exclude={"fields"}, exclude_none=True, exclude_defaults=False)
    return shown | {"until": letter.until} if letter.offsets else shown | {"offsets": [letter.offset]}
