"""``graphweft emit`` and ``graphweft import openai-chat``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from graphweft.transport import Outgoing, check_sizes
from graphweft_contracts import Event, InvalidEvent, wire
from graphweft_contracts.plurals import counted
from graphweft_workers.cli.options import App, command
from graphweft_workers.cli.output import INVALID_LINES, print_error, show, warn
from graphweft_workers.cli.publishing import PublishOptions, interruptible, publish, read_between
from graphweft_workers.imports.event_lines import (
    MOST_FAULTS,
    LineFaults,
    check_length,
    events_of_lines,
    numbered_lines,
    open_file,
)
from graphweft_workers.imports.file_series import numbered_blocks
from graphweft_workers.imports.files import STANDARD_INPUT, read_runs
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of_runs
from graphweft_workers.reports.delivery import PublishReport
from graphweft_workers.support.printable import printable

_STDIN: Final = 0
_CHUNK_BYTES: Final = 1 << 16
_CHUNKS_AHEAD: Final = 16
"""Chunks read from standard input before the bus takes them: at most 1 MiB."""
_FORM: Final = "The file needs one event on each line, as a JSON object without line breaks"


@command
async def emit(
    file: Annotated[str, typer.Argument(help="File with one CloudEvent (JSON) on each line, or - for standard input.")],
    options: PublishOptions,
) -> int | None:
    """Publish events. Those of a file go out in blocks, each checked first; those of standard input at once."""
    settings = options.settings()
    faults = LineFaults(print_error, warn)
    if file == STANDARD_INPUT:
        sent, outcome = await publish(settings, _groups(_lines_of(_chunks_of(_STDIN)), faults), options)
        faults.report_repeats()
    else:
        with contextlib.ExitStack() as opened:
            with interruptible():
                stream = opened.enter_context(open_file(file))
            blocks = numbered_blocks(events_of_lines(numbered_lines(stream, file), file, faults))
            sent, outcome = await publish(settings, read_between(_valid(blocks, file, faults)), options, harmless=True)
    report = PublishReport(sent=sent, outcome=outcome, refused=faults.count)
    show(report, json=options.json)
    return report.exit_code


def _valid(blocks: Iterator[list[Event]], file: str, faults: LineFaults) -> Iterator[list[Event]]:
    """Yield blocks up to the first one with an invalid line; then read on to report all, and raise ``InvalidEvent``."""
    valid = sent = 0
    for block in blocks:
        valid += len(block)
        if not faults.count:
            sent += len(block)
            yield block
    if faults.count:
        faults.report_repeats()
        form = "" if valid or not faults.of_form else f". {_FORM}"
        rest = "the rest was not sent" if sent else "nothing was sent"
        raise InvalidEvent(f"{file}: {faults.text(*INVALID_LINES)}; {rest}{form}")


@command
async def import_openai_chat(
    file: Annotated[str, typer.Argument(help="Recorded runs: .jsonl or .json, also .gz, or - for standard input.")],
    app: App,
    workflow: Annotated[str, typer.Option("--workflow", help="Workflow whose rules match the events.")],
    options: PublishOptions,
    agent: Annotated[str | None, typer.Option("--agent", help="Agent name of all turns.")] = None,
    chat_id: Annotated[
        str | None,
        typer.Option("--chat", "--chat-id", help="Template over a record's fields: 'task{task_id}-trial{trial}'."),
    ] = None,
    start: Annotated[
        datetime | None, typer.Option("--start", help="Time of the first run, for records without a time.")
    ] = None,
    context_field: Annotated[
        list[str] | None, typer.Option("--context-field", help="Record field to pass on as $context.FIELD; repeatable.")
    ] = None,
    handover_tool: Annotated[
        list[str] | None,
        typer.Option("--handover-tool", help="Pattern of tools that hand a chat over; repeatable."),
    ] = None,
    keep_reasoning: Annotated[
        bool, typer.Option("--keep-reasoning", help="Keep <think>…</think> and the like in answers.")
    ] = False,
) -> int | None:
    """Publish recorded chat-completion runs as events. A second import of the same file has no effect."""
    settings = options.settings()
    given: dict[str, Any] = {
        "agent": agent,
        "chat_id": chat_id,
        "start": start,
        "context_fields": tuple(context_field or ()),
        "handover_tools": tuple(handover_tool or ()),
    }
    how = ChatImportOptions(
        app_id=app,
        workflow=workflow,
        keep_reasoning=keep_reasoning,
        **{name: value for name, value in given.items() if value not in (None, ())},
    )
    left_out: Counter[str] = Counter()
    blocks = numbered_blocks(_with_size_checked(events_of_runs(read_runs(file), how, left_out)))
    sent, outcome = await publish(settings, read_between(blocks), options, harmless=True)
    if left_out:
        parts = ", ".join(f"{printable(name)} ({number:,})" for name, number in left_out.most_common(MOST_FAULTS))
        warn(f"{file}: {counted(left_out.total(), 'part')} of messages left out of the events: {parts}")
    report = PublishReport(sent=sent, outcome=outcome, left_out=left_out)
    show(report, json=options.json)
    return report.exit_code


def _with_size_checked(events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        check_sizes([Outgoing(key=event.key, fields=wire.encode(event))])
        yield event


async def _chunks_of(descriptor: int) -> AsyncGenerator[bytes]:
    """Yield the content of a stream as it arrives. The event loop stays free, so Ctrl-C works."""
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"first"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the command has ended
            while chunk and not isinstance(chunk, OSError):
                room.acquire()
                try:
                    chunk = os.read(descriptor, _CHUNK_BYTES)
                except OSError as error:
                    chunk = error
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)

    # A thread reads pipes, files and terminals alike. It is a daemon: nothing can end a read that waits for a key.
    threading.Thread(target=read, name="graphweft-stdin", daemon=True).start()
    while chunk := await chunks.get():
        room.release()
        if isinstance(chunk, OSError):
            raise InvalidEvent(f"standard input: {chunk.strerror}") from chunk
        yield chunk


async def _lines_of(chunks: AsyncIterable[bytes]) -> AsyncGenerator[list[tuple[int, bytes]]]:
    """Yield the complete lines of each chunk together, each with its number, from 1.

    Raises ``InvalidEvent`` at a line without an end.
    """
    rest, number = b"", 1
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield list(enumerate(lines, start=number))
            number += len(lines)
        check_length(rest, "standard input", number, before="the lines before it were sent, and no others: ")
    if rest:
        yield [(number, rest)]


async def _groups(lines: AsyncIterable[list[tuple[int, bytes]]], faults: LineFaults) -> AsyncGenerator[Iterator[Event]]:
    async for group in lines:
        yield events_of_lines(group, "standard input", faults, most=None)
