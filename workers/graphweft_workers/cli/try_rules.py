"""``graphweft try``."""

from __future__ import annotations

import io
import json as json_module
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from graphweft_contracts import Event, InvalidEvent
from graphweft_workers.cli.options import Json, Rules, command
from graphweft_workers.cli.output import print_error, show, warn
from graphweft_workers.cli.publishing import interruptible
from graphweft_workers.imports.event_lines import LineFaults, checked, events_of_lines, numbered_lines
from graphweft_workers.imports.files import read_whole
from graphweft_workers.reports.report import PlainReport
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.printable import printable
from graphweft_workers.wiring.rules import load_rules

if TYPE_CHECKING:  # the options are checked before what matches is loaded
    from graphweft_workers.testing.rule_replay import EventReplay


@command
async def try_rules(
    file: Annotated[Path, typer.Argument(help="File with one event (JSON), or with one on each line.")],
    rules: Rules = None,
    json: Json = False,
) -> int | None:
    """Show what the rules would do with events: the queries with their parameters, and skips with the reason.

    It contacts no server and writes nothing. Exits with 1 if an event matches no mutation.
    """
    from graphweft_workers.testing.rule_replay import replay

    rule_set = load_rules(Settings.load(rules=rules))
    tried = replay(_events(file), rule_set).events
    lines = (printable(line) for each in tried for line in _lines(each))
    show(PlainReport([each.to_dict() for each in tried], lines), json=json)
    return 1 if any(not each.mutations for each in tried) else None


def _events(file: Path) -> list[Event]:
    try:
        with interruptible(), file.open("rb") as given:
            content = read_whole(given, str(file))
    except OSError as error:
        raise InvalidEvent(f"{file}: {error.strerror}: give a file of events, as for `graphweft emit`") from error
    lines: Iterable[tuple[int, bytes]] = [(1, content)]
    try:
        json_module.loads(content)
    except (ValueError, RecursionError):  # JSON lines, or an error that is reported with its line
        lines = numbered_lines(io.BytesIO(content), str(file))
    faults = LineFaults(print_error, warn)
    return list(checked(events_of_lines(lines, str(file), faults), str(file), faults))


def _lines(tried: EventReplay) -> Iterator[str]:
    yield f"{tried.type} {tried.id}"
    for mutation in tried.mutations:
        yield f"  {mutation.name} ({mutation.place})"
        for line in mutation.statement.strip().splitlines():
            yield f"      {line}"
        params = json_module.dumps(mutation.params, ensure_ascii=False, default=str)
        yield f"      with {params}"
    for skip in tried.skipped:
        yield f"  {skip.name} ({skip.place}) is skipped: {skip.reason}"
    for rule in tried.unmatched:
        yield f"  {rule.rule} ({rule.place}) does not match: {rule.reason}"
    for fault in tried.faults:
        if fault.place is not None:
            yield f"  {fault.rule}/{fault.mutation} ({fault.place}) fails: {fault.message}"
    if tried.reason:
        yield f"  nothing: {tried.reason}"
