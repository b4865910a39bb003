"""``graphweft dlq``: what could not be applied, and what to do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer

from graphweft_contracts import DeadLetter, DeadLetterReason, InvalidSettings, wire
from graphweft_workers.bus.log import Bus
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import print_json, say
from graphweft_workers.cli.running import running_bus
from graphweft_workers.settings import Settings

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of letters, from `dlq list`.")]
Every = Annotated[bool, typer.Option("--all", help="All letters.")]
_OfApp = Annotated[str | None, typer.Option("--app", help="Only letters of this app.")]
_OfWorkflow = Annotated[str | None, typer.Option("--workflow", help="Only letters of this workflow.")]
_OfRule = Annotated[str | None, typer.Option("--rule", help="Only letters of this rule.")]
_OfReason = Annotated[
    DeadLetterReason | None, typer.Option("--reason", help="Only letters with this reason.", show_default=False)
]


@command
async def dlq_list(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most letters to list.")] = 100,
    app: _OfApp = None,
    workflow: _OfWorkflow = None,
    rule: _OfRule = None,
    reason: _OfReason = None,
    data: Data = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first. One letter may stand for many events of a partition: see its count."""
    chosen = _Choice(app=app, workflow=workflow, rule=rule, reason=reason)
    async with running_bus(Settings.load(data=data)) as bus:
        letters = await chosen.letters(bus, limit)
    if json:
        print_json([_letter(letter) for letter in letters])
        return
    if not letters:
        say("no dead letters")
    for letter in letters:  # not a table: a terminal would break ids, which are there to be copied
        what = (f"{letter.count:,} x {letter.reason}", letter.app_id, letter.event_type, _rule(letter), letter.place)
        say(f"{letter.id}\n    {'  '.join(filter(None, what))}\n    {letter.message}")


@command
async def dlq_show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `dlq list`.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one dead letter with its (first) event, which may hold personal data."""
    async with running_bus(Settings.load(data=data)) as bus:
        letter = await bus.dead_letter(letter_id)
    if letter is None:
        raise InvalidSettings(f"there is no dead letter {letter_id!r}; `graphweft dlq list` shows those there are")
    fields = {k.decode("latin-1"): v.decode(errors="backslashreplace") for k, v in wire.unpack(letter.fields).items()}
    if json:
        print_json(_letter(letter) | {"fields": fields})
        return
    for name, value in _letter(letter).items():
        if name != "offsets":
            say(f"{name}: {value}")
    for name, text in fields.items():
        say(f"{name}: {text}")


@command
async def dlq_retry(
    letter_ids: Ids = None,
    every: Every = False,
    app: _OfApp = None,
    workflow: _OfWorkflow = None,
    rule: _OfRule = None,
    reason: _OfReason = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Retry also where some of a letter's events have left the bus.")
    ] = False,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Put events back on the bus after a fix; of each event only the mutation that failed runs again.

    Exits with 1 when a letter stays, and says why.
    """
    from graphweft_workers.mutation.retries import retry

    chosen = _Choice(letter_ids, every, app=app, workflow=workflow, rule=rule, reason=reason)
    events = 0
    kept: list[tuple[str, str]] = []

    async def again(bus: Bus, letter: DeadLetter) -> None:
        nonlocal events
        done = await retry(bus, letter, partial=partial)
        events += done.events
        if done.kept is not None:
            kept.append((letter.id, done.kept))

    unknown = await chosen.for_each(data, again)
    if json:
        reasons = [{"id": letter_id, "why": why} for letter_id, why in kept]
        print_json({"retried": events, "left": len(kept), "kept": reasons, "unknown": unknown})
    else:
        say(f"{events} events are back on the bus" + (f"; {len(kept)} letters were left as they are" if kept else ""))
        for letter_id, why in kept:
            say(f"left {letter_id}: {why}")
        _say_unknown(unknown)
    return 2 if unknown else 1 if kept else None


@command
async def dlq_drop(
    letter_ids: Ids = None,
    every: Every = False,
    app: _OfApp = None,
    workflow: _OfWorkflow = None,
    rule: _OfRule = None,
    reason: _OfReason = None,
    data: Data = None,
    json: Json = False,
) -> int | None:
    """Forget letters: what they stand for never takes effect."""
    chosen = _Choice(letter_ids, every, app=app, workflow=workflow, rule=rule, reason=reason)
    dropped = left = 0

    async def drop(bus: Bus, letter: DeadLetter) -> None:
        nonlocal dropped, left
        done = await bus.requeue(letter, [])
        dropped, left = dropped + done, left + (not done)

    unknown = await chosen.for_each(data, drop)
    if json:
        print_json({"dropped": dropped, "left": left, "unknown": unknown})
    else:
        say(f"{dropped} letters are dropped" + (f"; {left} letters were left as they are" if left else ""))
        _say_unknown(unknown)
    return 2 if unknown else None


@command
async def dlq_skip(
    position: Annotated[str, typer.Argument(metavar="PARTITION:OFFSET", help="Where the event stands on the bus.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Tell the workers to pass over one event, as a last resort where it stops them; restart them afterwards.

    The event is kept in a dead letter with the reason set_aside, and `dlq retry` brings it back.
    """
    from graphweft_workers.mutation.set_aside import set_aside

    async with running_bus(Settings.load(data=data)) as bus:
        letter = await set_aside(bus, position)
    if json:
        print_json({"id": letter.id, "set_aside": letter.count})
    else:
        say(f"{position} is kept in the letter {letter.id}; restart the workers, which then pass over it")


class _Choice:
    """Which letters a command is about: those named, or all, or all that fit."""

    def __init__(
        self,
        ids: Sequence[str] | None = None,
        every: bool = False,
        *,
        app: str | None,
        workflow: str | None,
        rule: str | None,
        reason: str | None,
    ) -> None:
        self._ids = ids or ()
        wanted = {"app_id": app, "workflow": workflow, "rule": rule, "reason": reason}
        self._wanted = {name: value for name, value in wanted.items() if value is not None}
        self._every = every or bool(self._wanted)

    async def letters(self, bus: Bus, limit: int) -> list[DeadLetter]:
        found = await bus.dead_letters(limit=limit if not self._wanted else await bus.dead_letter_count() or 1)
        fits = (all(getattr(letter, name) == value for name, value in self._wanted.items()) for letter in found)
        return [letter for letter, fit in zip(found, fits, strict=True) if fit][:limit]

    async def for_each(self, data: Any, call: Callable[[Bus, DeadLetter], Awaitable[None]]) -> list[str]:
        """Call for each letter that is there; return the ids of which there is none."""
        if bool(self._ids) == self._every:
            raise InvalidSettings("name the letters, or give --all, --app, --workflow, --rule or --reason")
        async with running_bus(Settings.load(data=data)) as bus:
            if self._every:
                for letter in await self.letters(bus, await bus.dead_letter_count() or 1):
                    await call(bus, letter)
                return []
            unknown: list[str] = []
            for name in self._ids:
                named = await bus.dead_letter(name)
                if named is None:
                    unknown.append(name)
                else:
                    await call(bus, named)
            return unknown


def _say_unknown(unknown: Sequence[str]) -> None:
    if unknown:
        say(f"unknown: {', '.join(unknown)}")


def _rule(letter: DeadLetter) -> str:
    return f"{letter.rule}/{letter.mutation}" if letter.rule else ""


def _letter(letter: DeadLetter) -> dict[str, Any]:
    shown = letter.model_dump(mode="json", exclude={"fields"}, exclude_none=True, exclude_defaults=False)
    return shown | {"until": letter.until} if letter.offsets else shown | {"offsets": [letter.offset]}
