"""``graphweft emit`` and ``graphweft import``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from graphweft_contracts import BusUnavailable, Event, InvalidEvent, wire
from graphweft_workers.cli.options import App, Data, Json, command
from graphweft_workers.cli.output import print_error, print_json, say, stderr
from graphweft_workers.cli.sending import Sent, send, wait_until_applied
from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ImportOptions, events_of_runs
from graphweft_workers.services import make_bus, make_transport
from graphweft_workers.settings import Settings

__all__ = ("bar", "emit", "import_openai_chat", "publish")

type _Advance = Callable[[int], None]

_Wait = Annotated[bool, typer.Option("--wait", help="Return only when the events have taken effect.")]
_GiveUp = Annotated[
    float | None,
    typer.Option("--give-up-after", help="Seconds of an outage after which to stop.", show_default="keep trying"),
]


@command
async def emit(
    file: Annotated[str, typer.Argument(help="File with one CloudEvent (JSON) a line, or - for standard input.")],
    data: Data = None,
    wait: _Wait = False,
    give_up_after: _GiveUp = None,
    json: Json = False,
) -> int | None:
    """Publish events. A file is checked as a whole first; of standard input good lines go out as they come."""
    settings = Settings.load(data=data)
    faults: list[InvalidEvent] = []
    if file == "-":
        events = _events(sys.stdin.buffer, "standard input", faults)
        sent = await publish(settings, events, None, wait=wait, give_up_s=give_up_after)
    else:
        path = Path(file)
        try:
            with path.open("rb") as stream:
                checked = list(_events(stream, file, faults))
        except OSError as error:
            raise InvalidEvent(f"{file}: {error.strerror}") from error
        if faults:
            for fault in faults:
                print_error(fault)
            raise InvalidEvent(f"{file}: {len(faults)} lines are no events; correct them, nothing was sent")
        sent = await publish(settings, checked, len(checked), wait=wait, give_up_s=give_up_after)
    if json:
        print_json({"sent": sent.events, "refused": len(faults), "last": {str(p): o for p, o in sent.last.items()}})
    else:
        say(f"{sent.events} events sent" + (f", {len(faults)} lines refused" if faults else ""))
    return 2 if faults else None


@command
async def import_openai_chat(
    file: Annotated[str, typer.Argument(help="Recorded runs: .jsonl or .json, also .gz, or - for standard input.")],
    app: App,
    workflow: Annotated[str, typer.Option("--workflow", help="Workflow whose rules the events meet.")],
    agent: Annotated[str | None, typer.Option("--agent", help="Agent name of all turns.")] = None,
    chat_id: Annotated[
        str | None, typer.Option("--chat-id", help="Template over a record's fields: 'task{task_id}-trial{trial}'.")
    ] = None,
    start: Annotated[
        datetime | None, typer.Option("--start", help="Time of the first run, where records do not tell theirs.")
    ] = None,
    context_field: Annotated[
        list[str] | None, typer.Option("--context-field", help="Record field to pass on as $context.FIELD; repeatable.")
    ] = None,
    handover_tool: Annotated[
        list[str] | None,
        typer.Option("--handover-tool", help="Pattern of tools that hand a chat on; repeatable."),
    ] = None,
    data: Data = None,
    wait: _Wait = False,
    give_up_after: _GiveUp = None,
    json: Json = False,
) -> None:
    """Publish recorded chat-completion runs as lifecycle events. Importing a file again changes nothing."""
    settings = Settings.load(data=data)
    given = {
        "agent": agent,
        "chat_id": chat_id,
        "start": start,
        "context_fields": tuple(context_field) if context_field else None,
        "handover_tools": tuple(handover_tool) if handover_tool else None,
    }
    options = ImportOptions(
        app_id=app,
        workflow=workflow,
        **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    )
    events = list(events_of_runs(read_runs(file), options))
    sent = await publish(settings, events, len(events), wait=wait, give_up_s=give_up_after)
    if json:
        print_json({"sent": sent.events, "last": {str(p): o for p, o in sent.last.items()}})
    else:
        say(f"{sent.events} events sent")


async def publish(
    settings: Settings,
    events: Iterable[Event],
    total: int | None,
    *,
    wait: bool = False,
    give_up_s: float | None = None,
) -> Sent:
    """Send events with a progress bar on standard error; ``wait`` until they have taken effect."""
    transport = make_transport(settings)
    try:
        with bar("publishing", total) as advance:

            def outage(error: BusUnavailable) -> None:
                hint = f"; is `graphweft up --data {settings.data}` running?" if settings.embedded else ""
                stderr.print(
                    f"[yellow]{escape(str(error))}; trying again, Ctrl-C stops{escape(hint)}[/]", soft_wrap=True
                )

            sent = await send(transport, events, give_up_s=give_up_s, on_progress=advance, on_outage=outage)
    finally:
        await transport.aclose()
    if wait:
        bus = make_bus(settings)
        try:
            with bar("applying", None) as advance:
                left = 0

                def lag(events_left: int) -> None:
                    nonlocal left
                    advance(max(0, left - events_left))
                    left = events_left

                await wait_until_applied(bus, sent.last, on_lag=lag)
        finally:
            await bus.aclose()
    return sent


@contextmanager
def bar(title: str, total: int | None) -> Generator[_Advance]:
    """Show a progress bar on standard error while the block runs; yields what moves it on by a number of events."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("events"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=stderr, transient=not stderr.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


def _events(lines: Iterable[bytes], name: str, faults: list[InvalidEvent]) -> Iterator[Event]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield wire.decode({wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: line})
        except InvalidEvent as error:
            fault = InvalidEvent(f"{name}:{number}: {error}")
            faults.append(fault)
            if name == "standard input":
                print_error(fault)
