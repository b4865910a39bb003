"""``graphweft emit`` and ``graphweft import``."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import itertools
import os
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from graphweft_contracts import BusUnavailable, Event, InvalidEvent, wire
from graphweft_contracts.admission import check_admission
from graphweft_workers.cli.options import App, Data, Json, command
from graphweft_workers.cli.output import print_error, print_json, say, stderr
from graphweft_workers.cli.sending import Outcome, Sent, outcome_of, send, wait_until_applied
from graphweft_workers.imports.files import STANDARD_INPUT, read_runs, runs_of_stream
from graphweft_workers.imports.openai_chat import ImportOptions, events_of_runs
from graphweft_workers.mutation.duplicates import WINDOW
from graphweft_workers.services import make_bus, make_transport
from graphweft_workers.settings import Settings

_STDIN: Final = 0
_MOST_CAUSES: Final = 20
_CHUNK: Final = 1 << 16
_CHUNKS_AHEAD: Final = 16
"""Read from standard input before the bus takes them: 1 MiB at most."""
_NOT_TWICE: Final = (
    f"more than {WINDOW:,} of these events go to one partition: do not send them all again, for workers would take the "
    "first ones for new and apply them twice"
)
_CORRECTED: Final = "a corrected event needs an id of its own; after a corrected rule run: graphweft dlq retry --all"

type _Advance = Callable[[int], None]

Wait = Annotated[
    bool,
    typer.Option("--wait", help="Return when the workers are done with the events; exit with 1 unless all applied."),
]
GiveUp = Annotated[
    float | None,
    typer.Option("--give-up-after", help="Seconds of an outage after which to stop.", show_default="keep trying"),
]


@command
async def emit(
    file: Annotated[str, typer.Argument(help="File with one CloudEvent (JSON) a line, or - for standard input.")],
    data: Data = None,
    wait: Wait = False,
    give_up_after: GiveUp = None,
    json: Json = False,
) -> int | None:
    """Publish events. A file is checked as a whole first; of standard input good lines go out as they come."""
    settings = Settings.load(data=data)
    faults: list[InvalidEvent] = []
    if file == STANDARD_INPUT:
        groups = _groups(_lines_of(_chunks_of(_STDIN)), faults)
        sent, outcome = await publish(settings, groups, None, wait=wait, give_up_s=give_up_after)
    else:
        path = Path(file)
        try:
            with interruptible(), path.open("rb") as stream:
                checked = list(_events(enumerate(stream, start=1), file, faults))
        except OSError as error:
            raise InvalidEvent(f"{file}: {error.strerror}") from error
        if faults:
            for fault in faults:
                print_error(fault)
            raise InvalidEvent(f"{file}: {len(faults)} lines are no events; correct them, nothing was sent")
        sent, outcome = await publish(settings, checked, len(checked), wait=wait, give_up_s=give_up_after)
    return _report(sent, outcome, json, refused=len(faults))


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
    wait: Wait = False,
    give_up_after: GiveUp = None,
    json: Json = False,
) -> int | None:
    """Publish recorded chat-completion runs as events. Again: no change within 10,000 entries of a partition."""
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
    if file == STANDARD_INPUT:
        content = b"".join([chunk async for chunk in _chunks_of(_STDIN)])
        runs = runs_of_stream(io.BytesIO(content), file="<stdin>")
    else:
        runs = read_runs(file)
    with interruptible():
        events = list(events_of_runs(runs, options))
    sent, outcome = await publish(settings, events, len(events), wait=wait, give_up_s=give_up_after)
    return _report(sent, outcome, json)


def _report(sent: Sent, outcome: Outcome | None, json: bool, *, refused: int | None = None) -> int | None:
    """Say what was sent and what became of it; return the exit code."""
    if json:
        found: dict[str, object] = {"sent": sent.events, "last": {str(p): o for p, o in sent.last.items()}}
        if refused is not None:
            found["refused"] = refused
        if outcome is not None:
            found |= {
                "applied": outcome.applied,
                "skipped": outcome.skipped,
                "dead_lettered": outcome.dead_lettered,
                "repeated": outcome.repeated,
                "causes": [asdict(cause) for cause in outcome.causes],
            }
        print_json(found)
    else:
        say(f"{sent.events} events sent" + (f", {refused} lines refused" if refused else ""))
        if outcome is not None:
            say(f"{outcome.applied} applied, {outcome.skipped} skipped, {outcome.dead_lettered} dead-lettered")
            if outcome.repeated:
                say(f"{outcome.repeated} were on the bus before and have no effect again: {_CORRECTED}")
            for cause in outcome.causes[:_MOST_CAUSES]:
                place = f" at {cause.place}" if cause.place else ""
                say(f"  {cause.events} x {cause.reason}: {cause.name}{place}: {cause.message}")
            if not outcome.complete:
                say("after a fix, restart the workers and run: graphweft dlq retry --all")
    if refused:
        return 2
    return 1 if outcome is not None and not outcome.complete else None


async def publish(
    settings: Settings,
    events: Iterable[Event] | AsyncIterable[Iterable[Event]],
    total: int | None,
    *,
    wait: bool = False,
    give_up_s: float | None = None,
) -> tuple[Sent, Outcome | None]:
    """Send events with a progress bar on standard error; with ``wait``, return what became of them too."""
    transport = make_transport(settings)
    sent = Sent(positions=set() if wait else None)
    outcome: Outcome | None = None
    repeatable = True
    try:
        with bar("publishing", total) as advance:

            def outage(error: BusUnavailable) -> None:
                hint = f"; is `graphweft up --data {settings.data}` running?" if settings.embedded else ""
                stderr.print(
                    f"[yellow]{escape(str(error))}; trying again, Ctrl-C stops{escape(hint)}[/]", soft_wrap=True
                )

            def progress(count: int) -> None:
                nonlocal repeatable
                advance(count)
                if repeatable and not sent.repeatable:
                    repeatable = False
                    stderr.print(f"[yellow]{_NOT_TWICE}[/]", soft_wrap=True)

            async for group in events if isinstance(events, AsyncIterable) else _one(events):
                await send(transport, group, sent=sent, give_up_s=give_up_s, on_progress=progress, on_outage=outage)
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

                await wait_until_applied(bus, sent.last, apps=sent.apps, on_lag=lag)
            outcome = await outcome_of(bus, sent)
        finally:
            await bus.aclose()
    return sent, outcome


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
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda count: progress.advance(task, count)


async def _chunks_of(descriptor: int) -> AsyncGenerator[bytes]:
    """Yield what a stream holds as it comes; the event loop is never held up, so Ctrl-C works meanwhile."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"first"
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads on
            while chunk and not isinstance(chunk, OSError):
                room.acquire()
                try:
                    chunk = os.read(descriptor, _CHUNK)
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    # A thread, for a pipe and a file and a terminal alike; a daemon, for nothing ends a read that waits for a key.
    threading.Thread(target=read, name="graphweft-stdin", daemon=True).start()
    while chunk := await chunks.get():
        room.release()
        if isinstance(chunk, OSError):
            raise InvalidEvent(f"standard input: {chunk.strerror}") from chunk
        yield chunk


async def _lines_of(chunks: AsyncIterable[bytes]) -> AsyncGenerator[list[bytes]]:
    """Yield the lines in chunks, as many together as are there."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _groups(lines: AsyncIterable[list[bytes]], faults: list[InvalidEvent]) -> AsyncGenerator[Iterator[Event]]:
    numbers = itertools.count(1)
    async for group in lines:
        # The lines stand first: zip takes from its first argument before it sees that the second has no more.
        numbered = ((number, line) for line, number in zip(group, numbers, strict=False))
        yield _events(numbered, "standard input", faults, report=print_error)


async def _one(events: Iterable[Event]) -> AsyncGenerator[Iterable[Event]]:
    yield events


def _events(
    lines: Iterable[tuple[int, bytes]],
    name: str,
    faults: list[InvalidEvent],
    report: Callable[[InvalidEvent], None] = lambda _: None,
) -> Iterator[Event]:
    for number, raw in lines:
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        if not line.strip():
            continue
        try:
            # CloudEvents makes the time optional; an event without one happens now.
            fields = {wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: line}
            event = wire.decode(fields, received=datetime.now(UTC))
            check_admission(event)
            yield event
        except InvalidEvent as error:
            fault = InvalidEvent(f"{name}:{number}: {error}")
            faults.append(fault)
            report(fault)


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C end code that does not await: asyncio's own handler waits for the next await."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
