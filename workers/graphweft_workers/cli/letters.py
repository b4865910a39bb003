"""``graphweft dlq``: what could not be applied, and what to do about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from graphweft_contracts import DeadLetter, InvalidSettings, wire
from graphweft_workers.bus.log import Bus
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import print_json, print_table, say
from graphweft_workers.cli.running import running_bus
from graphweft_workers.settings import Settings

__all__ = ("Every", "Ids", "dlq_drop", "dlq_list", "dlq_retry", "dlq_show")

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of letters, from `dlq list`.")]
Every = Annotated[bool, typer.Option("--all", help="All letters.")]


@command
async def dlq_list(
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most letters to list.")] = 100,
    data: Data = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first."""
    async with running_bus(Settings.load(data=data)) as bus:
        letters = await bus.dead_letters(limit=limit)
    if json:
        print_json([_letter(letter) for letter in letters])
        return
    print_table(
        ("id", "reason", "event", "rule", "message"),
        [(x.id, x.reason, x.event_type, f"{x.rule}/{x.mutation}" if x.rule else "", x.message) for x in letters],
    )


@command
async def dlq_show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `dlq list`.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one dead letter with its event, which may hold personal data."""
    async with running_bus(Settings.load(data=data)) as bus:
        letter = await bus.dead_letter(letter_id)
    if letter is None:
        raise InvalidSettings(f"there is no dead letter {letter_id!r}; `graphweft dlq list` shows those there are")
    fields = {k.decode("latin-1"): v.decode(errors="backslashreplace") for k, v in wire.unpack(letter.fields).items()}
    if json:
        print_json(_letter(letter) | {"fields": fields})
        return
    for name, value in _letter(letter).items():
        say(f"{name}: {value}")
    for name, text in fields.items():
        say(f"{name}: {text}")


@command
async def dlq_retry(letter_ids: Ids = None, every: Every = False, data: Data = None, json: Json = False) -> int | None:
    """Put events back on the bus after a fix; of each event only the mutation that failed runs again."""
    from graphweft_workers.mutation.retries import retry

    counts, unknown = await _for_each(letter_ids, every, data, retry)
    # What was trimmed unread is nowhere any more: such a letter can only be dropped.
    return _report(counts, unknown, json, done="retried", text="events are back on the bus")


@command
async def dlq_drop(letter_ids: Ids = None, every: Every = False, data: Data = None, json: Json = False) -> int | None:
    """Forget letters: what they stand for never takes effect."""

    async def drop(bus: Bus, letter: DeadLetter) -> int:
        return int(await bus.requeue(letter, []))

    counts, unknown = await _for_each(letter_ids, every, data, drop)
    return _report(counts, unknown, json, done="dropped", text="letters are dropped")


async def _for_each(
    letter_ids: list[str] | None, every: bool, data: Path | None, call: Callable[[Bus, DeadLetter], Awaitable[int]]
) -> tuple[list[int], list[str]]:
    """Return what the call returned for each letter that is there, and the ids of which there is none."""
    if bool(letter_ids) == every:
        raise InvalidSettings("name the letters, or give --all")
    async with running_bus(Settings.load(data=data)) as bus:
        if every:
            letters = list(await bus.dead_letters(limit=await bus.dead_letter_count() or 1))
            return [await call(bus, letter) for letter in letters], []
        found = {name: await bus.dead_letter(name) for name in letter_ids or []}
        counts = [await call(bus, letter) for letter in found.values() if letter is not None]
        return counts, [name for name, letter in found.items() if letter is None]


def _report(counts: list[int], unknown: list[str], json: bool, *, done: str, text: str) -> int | None:
    left = sum(not count for count in counts)
    if json:
        print_json({done: sum(counts), "left": left, "unknown": unknown})
    else:
        say(f"{sum(counts)} {text}" + (f"; {left} letters were left as they are" if left else ""))
        if unknown:
            say(f"unknown: {', '.join(unknown)}")
    return 2 if unknown else None


def _letter(letter: DeadLetter) -> dict[str, Any]:
    return letter.model_dump(mode="json", exclude={"fields"}, exclude_none=True)
