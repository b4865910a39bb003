"""``graphweft dlq``: list, show, retry, drop and skip dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from graphweft_contracts import DeadLetter, DeadLetterReason, InvalidSettings, wire
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import print_json, say
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of letters, from `dlq list`.")]
Every = Annotated[bool, typer.Option("--all", help="All letters.")]


_EVERY: Final = 1_000_000_000
"""More dead letters than there can be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Options that choose dead letters."""

    app_id: Annotated[str | None, typer.Option("--app", help="Only letters of this app.")] = None
    workflow: Annotated[str | None, typer.Option("--workflow", help="Only letters of this workflow.")] = None
    rule: Annotated[str | None, typer.Option("--rule", help="Only letters of this rule.")] = None
    reason: Annotated[
        DeadLetterReason | None, typer.Option("--reason", help="Only letters with this reason.", show_default=False)
    ] = None

    @property
    def wanted(self) -> dict[str, str]:
        """The options that are given, as fields of a letter."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    async def letters(self, bus: Bus, limit: int) -> list[DeadLetter]:
        """Return the first ``limit`` letters that match, oldest first, without their events."""
        wanted = self.wanted.items()
        found = await bus.dead_letters.read(limit=limit if not wanted else _EVERY, whole=False)
        return [each for each in found if all(getattr(each, name) == value for name, value in wanted)][:limit]


@command
async def dlq_list(
    chosen: Filter,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of letters.")] = 100,
    data: Data = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first. One letter may stand for many events of a partition: see its count."""
    async with running_bus(Settings.load(data=data)) as bus:
        letters = await chosen.letters(bus, limit)
    if json:
        print_json([_letter(letter) for letter in letters])
        return
    if not letters:
        say("no dead letters")
    for letter in letters:  # not a table, which would break the ids over lines
        rule = f"{letter.rule}/{letter.mutation}" if letter.rule else ""
        what = (f"{letter.count:,} x {letter.reason}", letter.app_id, letter.event_type, rule, letter.place)
        say(f"{letter.id}\n    {'  '.join(filter(None, what))}\n    {letter.message}")


@command
async def dlq_show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `dlq list`.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one dead letter with its (first) event, which may hold personal data."""
    from graphweft_workers.engine.letter_payloads import payload_of

    async with running_bus(Settings.load(data=data)) as bus:
        letter = await letter_with(bus.dead_letters, letter_id)
        payload = await payload_of(bus, letter) if letter is not None else dict[str, str]()
    if letter is None:
        raise InvalidSettings(f"unknown dead letter {letter_id!r}: run `graphweft dlq list` to see the letters")
    fields = {k.decode("latin-1"): v.decode(errors="backslashreplace") for k, v in wire.unpack(payload).items()}
    if json:
        print_json(_letter(letter) | {"fields": fields})
        return
    for name, value in (_letter(letter) | fields).items():
        if name != "offsets":
            say(f"{name}: {value}")


@command
async def dlq_retry(
    chosen: Filter,
    letter_ids: Ids = None,
    every: Every = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Also retry letters of which the bus has lost some events.")
    ] = False,
    without_keys: Annotated[
        bool,
        typer.Option(
            "--without-keys", help="Also retry signed events; workers with signing keys refuse them for good."
        ),
    ] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Put events back on the bus after a fix. Of each event, only the mutation that failed runs again.

    Exits with 1 and names the reason when a letter stays.
    """
    from graphweft_workers.engine.retries import retry

    events = 0
    kept: list[tuple[str, str]] = []
    async with _chosen(chosen, letter_ids, every, data) as (bus, letters, unknown):
        for name in letters:
            if (letter := await letter_with(bus.dead_letters, name)) is None:  # retried or dropped meanwhile
                continue
            done = await retry(bus, letter, partial=partial, without_keys=without_keys)
            events += done.events
            if done.kept is not None:
                kept.append((letter.id, done.kept))
    if json:
        print_json({"retried": events, "left": len(kept), "kept": _kept(kept), "unknown": unknown})
    else:
        say(f"{counted(events, 'event is', 'events are')} back on the bus{_staying(kept)}")
        _say_kept(kept)
        _say_unknown(unknown)
    return 2 if unknown else 1 if kept else None


@command
async def dlq_drop(
    chosen: Filter, letter_ids: Ids = None, every: Every = False, data: Data = None, json: Json = False
) -> int | None:
    """Delete letters. Their events and mutations never take effect, in a rebuild neither: the log records it."""
    from graphweft_workers.engine.retries import drop

    async with _chosen(chosen, letter_ids, every, data) as (bus, letters, unknown):
        kept: list[tuple[str, str]] = []
        for name in letters:
            letter = await letter_with(bus.dead_letters, name)
            if letter is not None and (why := await drop(bus, letter)) is not None:
                kept.append((name, why))
    dropped = len(letters) - len(kept)
    if json:
        print_json({"dropped": dropped, "left": len(kept), "kept": _kept(kept), "unknown": unknown})
    else:
        say(f"{counted(dropped, 'letter is', 'letters are')} dropped{_staying(kept)}")
        _say_kept(kept)
        _say_unknown(unknown)
    return 2 if unknown else 1 if kept else None


@command
async def dlq_skip(
    position: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="Position of the event on the bus.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Make the workers skip one event, as a last resort when it stops them. Restart the workers afterwards.

    A dead letter with the reason set_aside keeps the event; `dlq retry` brings it back, unless a worker reached it
    before the restart.
    """
    from graphweft_workers.engine.set_aside import set_aside

    async with running_bus(Settings.load(data=data)) as bus:
        letter = await set_aside(bus, position)
    if json:
        print_json({"id": letter.id, "set_aside": letter.count})
    else:
        say(f"the letter {letter.id} keeps {position}; restart the workers, which then skip it")


@asynccontextmanager
async def _chosen(
    chosen: Filter, ids: Sequence[str] | None, every: bool, data: Path | None
) -> AsyncGenerator[tuple[Bus, list[str], list[str]]]:
    """Yield the bus, the ids of the letters that the options choose, and the ids that no letter has."""
    every = every or bool(chosen.wanted)
    if bool(ids) == every:
        raise InvalidSettings("give either ids of letters, or --all, --app, --workflow, --rule or --reason")
    async with running_bus(Settings.load(data=data)) as bus:
        if every:
            yield bus, [letter.id for letter in await chosen.letters(bus, _EVERY)], []
        else:
            names = tuple(dict.fromkeys(ids or ()))
            found = await bus.dead_letters.read(limit=len(names), ids=names, whole=False)
            known = {each.id for each in found}
            yield bus, [name for name in names if name in known], [name for name in names if name not in known]


def _staying(kept: Sequence[tuple[str, str]]) -> str:
    return f"; {counted(len(kept), 'letter stays', 'letters stay')}" if kept else ""


def _kept(kept: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"id": letter_id, "why": why} for letter_id, why in kept]


def _say_kept(kept: Sequence[tuple[str, str]]) -> None:
    for letter_id, why in kept:
        say(f"{letter_id} stays: {why}")


def _say_unknown(unknown: Sequence[str]) -> None:
    if unknown:
        say(f"unknown: {', '.join(unknown)}; `graphweft dlq list` shows the ids")


def _letter(letter: DeadLetter) -> dict[str, Any]:
    shown = letter.model_dump(mode="json", exclude={"fields"}, exclude_none=True, exclude_defaults=False)
    return shown | {"until": letter.until} if letter.offsets else shown | {"offsets": [letter.offset]}
