"""``graphweft emit`` and ``graphweft import``."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import os
import re
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import count, islice
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Final, NoReturn, cast

import typer

from graphweft.transport import MAX_EVENT_BYTES, Outgoing, check_sizes
from graphweft_contracts import Event, InvalidEvent, MalformedEvent, wire
from graphweft_contracts.admission import decode_given
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_contracts.plurals import counted
from graphweft_rules.files.findings import did_you_mean
from graphweft_workers.cli.options import App, command
from graphweft_workers.cli.output import INVALID_LINES, print_error, print_json, printable, say, warn
from graphweft_workers.cli.publishing import PublishOptions, interruptible, publish
from graphweft_workers.imports.files import STANDARD_INPUT, check_size, read_runs, runs_of_stream
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of_runs
from graphweft_workers.imports.runs import ImportProblem
from graphweft_workers.imports.series_name import SeriesName
from graphweft_workers.reports.delivery import DeliveryOutcome, Sent

_STDIN: Final = 0
_MAX_CAUSES: Final = 20
_CHUNK_BYTES: Final = 1 << 16
_CHUNKS_AHEAD: Final = 16
"""Chunks read from standard input before the bus takes them: at most 1 MiB."""
_FORM: Final = "The file needs one event on each line, as a JSON object without line breaks"
_TYPO: Final = 0.85
MOST_FAULTS: Final = 1_000
"""After as many invalid lines, the rest of a file is not read."""
_DIGITS: Final = re.compile(r"\d+")
_LARGE: Final = MAX_EVENT_BYTES // 4
"""Bytes of a line whose event may be too large: an event is written with other escapes and spaces than its line."""
_MOST_ATTRIBUTES: Final = 1_000
_LONGEST_LINE: Final = 16_000_000
"""Bytes of a line: more than an event can have, however its text is escaped."""
_AFTER_A_FIX: Final = "a corrected event needs a new id; after a fix of a rule, run `graphweft dlq retry --all`"


@command
async def emit(
    file: Annotated[str, typer.Argument(help="File with one CloudEvent (JSON) on each line, or - for standard input.")],
    options: PublishOptions,
) -> int | None:
    """Publish events. A file is checked in full first. From standard input, each valid line is sent at once."""
    settings = options.settings()
    faults = Faults()
    if file == STANDARD_INPUT:
        sent, outcome = await publish(settings, _groups(_lines_of(_chunks_of(_STDIN)), faults), None, options)
        faults.report_repeats()
    else:
        with contextlib.ExitStack() as opened:
            series = SeriesName()
            with interruptible():
                stream = opened.enter_context(open_file(file))
                lines = numbered_lines(stream, file)
                if not stream.seekable():  # a pipe can be read only once
                    stream = _temporary_file(opened)
                    lines = _copied(lines, stream)
                checked = series.add(events_of_lines(lines, file, faults))
            if faults.count:
                faults.report_repeats()
                form = "" if checked or not faults.of_form else f". {_FORM}"
                raise InvalidEvent(f"{file}: {faults.text(*INVALID_LINES)}; nothing was sent{form}")
            events = series.numbered(second_reading(stream, file, checked))
            sent, outcome = await publish(settings, events, checked, options, harmless=True)
    return _report(sent, outcome, options.json, refused=faults.count)


@command
async def import_openai_chat(
    file: Annotated[str, typer.Argument(help="Recorded runs: .jsonl or .json, also .gz, or - for standard input.")],
    app: App,
    workflow: Annotated[str, typer.Option("--workflow", help="Workflow whose rules match the events.")],
    options: PublishOptions,
    agent: Annotated[str | None, typer.Option("--agent", help="Agent name of all turns.")] = None,
    chat_id: Annotated[
        str | None, typer.Option("--chat-id", help="Template over a record's fields: 'task{task_id}-trial{trial}'.")
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
    content: bytes | None = None
    if file == STANDARD_INPUT:
        whole = io.BytesIO()
        async for chunk in _chunks_of(_STDIN):
            whole.write(chunk)
            check_size(whole.tell(), "<stdin>")
        content = whole.getvalue()
    elif Path(file).is_fifo():
        raise ImportProblem(
            f"{file}: it is a pipe, which can be read only once: pass its content on standard input as '-'"
        )

    def read(skipped: Counter[str] | None = None) -> Iterator[Event]:
        runs = read_runs(file) if content is None else runs_of_stream(io.BytesIO(content), file="<stdin>")
        return events_of_runs(runs, how, skipped)

    left_out: Counter[str] = Counter()

    def with_size_checked() -> Iterator[Event]:
        for event in read(left_out):
            check_sizes([Outgoing(key=event.key, fields=wire.encode(event))])
            yield event

    series = SeriesName()
    with interruptible():
        checked = series.add(with_size_checked())
    if left_out:
        parts = ", ".join(f"{printable(name)} ({number:,})" for name, number in left_out.most_common(MOST_FAULTS))
        warn(f"{file}: {counted(left_out.total(), 'part')} of messages left out of the events: {parts}")
    events = series.numbered(read_again(read(), file, checked))
    sent, outcome = await publish(settings, events, checked, options, harmless=True)
    return _report(sent, outcome, options.json, left_out=left_out)


def _report(
    sent: Sent,
    outcome: DeliveryOutcome | None,
    json: bool,
    *,
    refused: int | None = None,
    left_out: Mapping[str, int] | None = None,
) -> int | None:
    """Print what was sent and its outcome; return the exit code."""
    if json:
        found: dict[str, object] = {"sent": sent.events, "last": {str(p): o for p, o in sent.last.items()}}
        if refused is not None:
            found["refused"] = refused
        if left_out:
            found["left_out"] = dict(left_out)
        if outcome is not None:
            found |= asdict(outcome)
        print_json(found)
    else:
        say(f"{counted(sent.events, 'event')} sent" + (f", {counted(refused, 'line')} refused" if refused else ""))
        if outcome is not None:
            unmatched = f"{outcome.unmatched} without a rule, " if outcome.unmatched else ""
            say(
                f"{outcome.applied} applied, {unmatched}{outcome.skipped} skipped, "
                f"{outcome.dead_lettered} dead-lettered"
            )
            if outcome.repeated:
                say(f"{outcome.repeated} were on the bus before and have no effect again: {_AFTER_A_FIX}")
            for kind in outcome.without_rule[:_MAX_CAUSES]:
                say(printable(f"  {kind.events:,} x without effect: workflow {kind.workflow!r}: {kind.reason}"))
            if (more := len(outcome.without_rule) - _MAX_CAUSES) > 0:
                say(f"  and {counted(more, 'other type')} without a rule: `graphweft coverage` counts them all")
            for cause in outcome.causes[:_MAX_CAUSES]:
                place = f" at {cause.place}" if cause.place else ""
                say(f"  {cause.events:,} x {cause.reason}: {cause.name}{place}: {cause.message}")
            if not outcome.complete:
                say("after a fix run: graphweft rules push, graphweft dlq retry --all")
    if refused:
        return 2
    return 1 if sent.without_outcome or (outcome is not None and not outcome.complete) else None


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
        _check_length(rest, "standard input", number, before="the lines before it were sent, and no others: ")
    if rest:
        yield [(number, rest)]


def open_file(name: str) -> BinaryIO:
    """Open a file of events. Raises ``InvalidEvent`` if that fails."""
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise InvalidEvent(f"{name}: {error.strerror}") from error


def numbered_lines(stream: IO[bytes], name: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers, from 1.

    Raises ``InvalidEvent`` at a line without an end, and if the file cannot be read.
    """
    for number in count(1):
        try:
            line = stream.readline(_LONGEST_LINE + 1)
        except OSError as error:
            raise InvalidEvent(f"{name}: {error.strerror}") from error
        _check_length(line, name, number)
        if not line:
            return
        yield number, line


def _temporary_file(opened: contextlib.ExitStack) -> BinaryIO:
    """Open a file for the copy of a pipe. Raises ``InvalidEvent`` if that fails."""
    try:
        copy = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - ``opened`` closes it
    except OSError as error:
        raise InvalidEvent(f"a copy of the pipe cannot be made: {error.strerror}") from error

    def close() -> None:
        with contextlib.suppress(OSError):  # it writes what could not be written before
            copy.close()

    opened.callback(close)
    return copy


def _copied(lines: Iterable[tuple[int, bytes]], copy: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield lines, and write them to a file. Raises ``InvalidEvent`` if that fails."""
    try:
        for number, line in lines:
            copy.write(line)
            yield number, line
        copy.flush()
    except OSError as error:
        raise InvalidEvent(f"a copy of the pipe in {tempfile.gettempdir()}: {error.strerror}") from error


def second_reading(stream: IO[bytes], name: str, checked: int) -> Iterator[Event]:
    """Yield the first ``checked`` events of a file that was checked. Lines that were added since then are left out."""

    def changed(fault: InvalidEvent) -> NoReturn:
        raise fault

    stream.seek(0)
    yield from read_again(
        events_of_lines(numbered_lines(stream, name), name, Faults(changed), hints=False), name, checked
    )


def read_again(events: Iterator[Event], name: str, checked: int) -> Iterator[Event]:
    """Yield the first ``checked`` events of a second reading. Raises ``InvalidEvent`` if the file has changed."""
    sent = 0
    try:
        for event in islice(events, checked):
            yield event
            sent += 1
    except (InvalidEvent, ImportProblem) as fault:
        raise InvalidEvent(f"{name} has changed since it was checked, and is sent in part: {fault}") from fault
    if sent < checked:
        raise InvalidEvent(f"{name} has changed since it was checked: {sent:,} of its {checked:,} events were sent")


def _check_length(line: bytes, name: str, number: int, *, before: str = "") -> None:
    if len(line) > _LONGEST_LINE:
        raise InvalidEvent(
            f"{name}:{number}: the line has more than {_LONGEST_LINE:,} bytes, and an event has at most "
            f"{MAX_EVENT_BYTES:,}; {before}pass one event on each line"
        )


async def _groups(lines: AsyncIterable[list[tuple[int, bytes]]], faults: Faults) -> AsyncGenerator[Iterator[Event]]:
    told: set[str] = set()
    async for group in lines:
        yield events_of_lines(group, "standard input", faults, told=told, most=None)


@dataclass(slots=True)
class Faults:
    """Counts invalid lines, and reports the first line of each kind of fault, for at most ``MOST_FAULTS`` kinds.

    Faults are of one kind if their texts differ in numbers only.
    """

    report: Callable[[InvalidEvent], None] = print_error
    count: int = 0
    of_form: bool = False
    """Whether a line was not a JSON object."""
    unreported: int = 0
    """Lines with a fault of a kind beyond the limit."""
    _kinds: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    """By kind: the place of the first line, and the number of lines."""

    def add(self, place: str, error: InvalidEvent) -> None:
        """Count the fault of a line, and report it if it is the first of its kind."""
        self.count += 1
        self.of_form = self.of_form or isinstance(error, MalformedEvent)
        text = str(error)
        kind = _DIGITS.sub("0", text)
        if kind not in self._kinds and len(self._kinds) >= MOST_FAULTS:
            self.unreported += 1
            return
        first, number = self._kinds.get(kind, (place, 0))
        self._kinds[kind] = (first, number + 1)
        if not number:
            self.report(InvalidEvent(f"{place}: {text}"))

    def report_repeats(self) -> None:
        """Report of each kind with several lines how many there are."""
        for place, number in self._kinds.values():
            if number > 1:
                self.report(InvalidEvent(f"{place}: {number:,} lines have this fault; this is the first"))
        if self.unreported:
            self.report(InvalidEvent(f"and {counted(self.unreported, 'line')} with other faults"))

    def text(self, one: str, several: str) -> str:
        """Return how many there are, or at least are if ``MOST_FAULTS`` ended the reading."""
        return ("at least " if self.count == MOST_FAULTS else "") + counted(self.count, one, several)


def events_of_lines(
    lines: Iterable[tuple[int, bytes]],
    name: str,
    faults: Faults,
    *,
    told: set[str] | None = None,
    hints: bool = True,
    most: int | None = MOST_FAULTS,
) -> Iterator[Event]:
    """Yield the events of numbered lines; add those that are invalid to ``faults``. It ends after ``most`` faults.

    With ``hints``, it warns once of each attribute that is probably misspelt. ``told`` holds those of earlier lines.
    """
    told = set() if told is None else told
    for number, raw in lines:
        line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        if not line.strip():
            continue
        try:
            # CloudEvents makes the time optional; the time of an event without one is now.
            event = decode_given(line, SYSTEM_CLOCK.now())
            if len(line) > _LARGE:
                check_sizes([Outgoing(key=event.key, fields=wire.encode(event))])
        except InvalidEvent as error:
            faults.add(f"{name}:{number}", error)
            if faults.count == most:
                return
            continue
        for attribute in list((event.model_extra or {}).keys() - told)[: _MOST_ATTRIBUTES - len(told)] if hints else ():
            told.add(attribute)
            if hint := did_you_mean(attribute, Event.model_fields.keys() - event.model_fields_set, closeness=_TYPO):
                warn(f"{name}:{number}: {attribute!r} is not an attribute that graphweft reads{hint}")
        yield event
