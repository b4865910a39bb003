"""``graphweft dlq``: list, show, retry, drop and skip dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from graphweft_contracts import DeadLetterReason, InvalidSettings
from graphweft_workers.cli.options import Data, Json, command
from graphweft_workers.cli.output import show
from graphweft_workers.cli.process_user import UNKNOWN_USER, process_user
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with
from graphweft_workers.reports.dead_letters import (
    MOST_LETTERS,
    LetterList,
    LetterWithEvent,
    drop_letters,
    letters_of_fields,
    retry_letters,
)
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.running import running_bus

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Ids of letters, from `dlq list`.")]
Every = Annotated[bool, typer.Option("--all", help="All letters.")]


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


@command
async def dlq_list(
    chosen: Filter,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of letters.")] = 100,
    data: Data = None,
    json: Json = False,
) -> None:
    """List dead letters, oldest first. One letter may stand for many events of a partition: see its count."""
    async with running_bus(Settings.load(data=data)) as bus:
        letters = await letters_of_fields(bus, chosen.wanted, limit)
    show(LetterList(letters=letters), json=json)


@command
async def dlq_show(
    letter_id: Annotated[str, typer.Argument(metavar="ID", help="The letter's id, from `dlq list`.")],
    data: Data = None,
    json: Json = False,
) -> None:
    """Show one dead letter with its (first) event, which may hold personal data."""
    async with running_bus(Settings.load(data=data)) as bus:
        letter = await letter_with(bus.dead_letters, letter_id)
        found = None if letter is None else await LetterWithEvent.read(bus, letter)
    if found is None:
        raise InvalidSettings(f"unknown dead letter {letter_id!r}: run `graphweft dlq list` to see the letters")
    show(found, json=json)


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
    async with _letter_choice(chosen, letter_ids, every, data) as (bus, known, unknown):
        done = await retry_letters(bus, known, unknown, partial=partial, without_keys=without_keys)
    show(done, json=json)
    return done.exit_code


@command
async def dlq_drop(
    chosen: Filter, letter_ids: Ids = None, every: Every = False, data: Data = None, json: Json = False
) -> int | None:
    """Delete letters. Their events and mutations never take effect, in a rebuild neither: the log records it.

    With a letter of the reason `trimmed`, you accept that all entries are lost that its partition lacks now. Then
    replays and erasures go on without them: the archive records who has accepted it, and when.
    """
    async with _letter_choice(chosen, letter_ids, every, data) as (bus, known, unknown):
        done = await drop_letters(bus, known, unknown, by=process_user() or UNKNOWN_USER)
    show(done, json=json)
    return done.exit_code


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
    from graphweft_workers.engine.failures.set_aside import set_aside

    async with running_bus(Settings.load(data=data)) as bus:
        letter = await set_aside(bus, position)
    said = f"the letter {letter.id} keeps {position}; restart the workers, which then skip it"
    show(PlainReport({"id": letter.id, "set_aside": letter.count}, [said]), json=json)


@asynccontextmanager
async def _letter_choice(
    chosen: Filter, ids: Sequence[str] | None, every: bool, data: Path | None
) -> AsyncGenerator[tuple[Bus, list[str], list[str]]]:
    """Yield the bus, the ids of the letters that the options choose, and the ids that no letter has."""
    every = every or bool(chosen.wanted)
    if bool(ids) == every:
        raise InvalidSettings("give either ids of letters, or --all, --app, --workflow, --rule or --reason")
    async with running_bus(Settings.load(data=data)) as bus:
        if every:
            yield bus, [letter.id for letter in await letters_of_fields(bus, chosen.wanted, MOST_LETTERS)], []
        else:
            names = tuple(dict.fromkeys(ids or ()))
            found = await bus.dead_letters.read(limit=len(names), ids=names, whole=False)
            known = {each.id for each in found}
            yield bus, [name for name in names if name in known], [name for name in names if name not in known]
