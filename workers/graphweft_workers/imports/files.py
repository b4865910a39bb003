"""Reads files with recorded runs. Files with single items are read by ``items``.

JSON-lines files are read line by line, so they can have any size. A ``.json`` file is read whole into memory, as is
standard input: up to ``MOST_BYTES``.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import JsonValue

from graphweft_workers.imports.runs import ImportProblem, RecordedRun, parse_json, records_in, run_of, session_of
from graphweft_workers.text.content_limits import TooMuch, UnpackedGzip, check_values

STANDARD_INPUT: Final = "-"
LINES: Final = (".jsonl", ".ndjson")
WHOLE: Final = (".json",)
MOST_BYTES: Final = 256 * 1024**2
"""The most that is read into memory at once: a document or a line, unpacked."""
_CHUNK_BYTES: Final = 1 << 16
GZIP_MAGIC: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, gzip.BadGzipFile, zlib.error)
"""Errors of the gzip module. BadGzipFile is also an OSError, so catch these first."""


def read_runs(path: Path | str) -> Iterator[RecordedRun]:
    """Yield the runs of a ``.jsonl`` or ``.json`` file, plain or ``.gz``, in file order; ``-`` is standard input.

    Standard input can have any of these forms. Raises ``ImportProblem`` at the first invalid record, after the runs
    before it have been yielded.
    """
    file = str(path)
    if file == STANDARD_INPUT:
        with reading(file):
            yield from runs_of_stream(sys.stdin.buffer, file="<stdin>")
        return
    name = file.lower().removesuffix(".gz")
    if not name.endswith((*LINES, *WHOLE)):
        raise ImportProblem(
            f"{file}: unknown file type: expected .jsonl, .ndjson or .json, optionally with .gz; rename the file, "
            "or pass its content on standard input as '-'"
        )
    packed = name != file.lower()
    with reading(file), Path(path).open("rb") as given:
        stream: BinaryIO = io.BufferedReader(UnpackedGzip(given)) if packed else given
        if name.endswith(WHOLE):
            yield from runs_of_json(read_whole(stream, file), file=file, packed=packed)
        else:
            yield from runs_of_lines(_lines(stream, file), file=file, packed=packed)


@contextmanager
def reading(file: str) -> Generator[None]:
    """Raise ``ImportProblem`` if a file cannot be read, or its gzip content is damaged or unpacks to too much."""
    try:
        yield
    except DAMAGED as error:
        raise ImportProblem(
            f"{file}: the gzip content is damaged or incomplete ({error}): copy the file again"
        ) from error
    except TooMuch as error:
        raise ImportProblem(f"{file}: {error}") from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ImportProblem(f"{file}: cannot be read ({reason}); check the path") from error


def read_whole(stream: BinaryIO, file: str) -> bytes:
    """Return the rest of a stream. Raises ``ImportProblem`` if it is longer than ``MOST_BYTES``."""
    content = io.BytesIO()
    while chunk := stream.read(_CHUNK_BYTES):
        content.write(chunk)
        check_size(content.tell(), file)
    return content.getvalue()


def check_size(size: int, place: str) -> None:
    """Raise ``ImportProblem`` for a size above ``MOST_BYTES``."""
    if size > MOST_BYTES:
        raise ImportProblem(
            f"{place}: it has more than {MOST_BYTES:,} bytes, the most that is read into memory at once: split it into "
            "several files"
        )


def _lines(stream: BinaryIO, file: str) -> Iterator[bytes]:
    number = 0
    while line := stream.readline(MOST_BYTES + 1):
        number += 1
        check_size(len(line), f"{file}:{number}")
        yield line


def runs_of_lines(lines: Iterator[bytes], *, file: str, packed: bool = False) -> Iterator[RecordedRun]:
    """Yield the runs of JSON lines: one value on each line; empty lines are skipped.

    Lines of one session of Claude Code that follow each other are one run.
    """
    number = 0
    session: tuple[str, str] | None = None
    entries: list[JsonValue] = []

    def ended() -> Iterator[RecordedRun]:
        nonlocal number
        if session is not None:
            record: JsonValue = {"session_id": session[0], "messages": entries.copy()}
            yield run_of(record, place=session[1], number=number)
            entries.clear()
            number += 1

    for line, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        place = f"{file}:{line}"
        text = _decoded(raw, place=place, packed=packed)
        try:
            value = parse_json(text)
        except ValueError as error:
            raise ImportProblem(
                f"{place}: invalid JSON ({error}); a .jsonl file has one JSON value on each line; name a file with one "
                "value over several lines .json"
            ) from error
        found = session_of(value)
        if session is not None and found != session[0]:
            yield from ended()
            session = None
        if found is not None:
            session = session or (found, place)
            entries.append(value)
            continue
        for where, record in records_in(value, place=place):
            yield run_of(record, place=where, number=number)
            number += 1
    yield from ended()


def runs_of_json(content: bytes, *, file: str, packed: bool = False) -> Iterator[RecordedRun]:
    """Yield the runs of one JSON value: a record or an array of records."""
    try:
        value = parse_json(_decoded(content, place=file, packed=packed))
    except ValueError as error:
        raise ImportProblem(
            f"{file}: invalid JSON ({error}); name a file with one JSON value on each line .jsonl"
        ) from error
    for number, (place, record) in enumerate(records_in(value, place=file)):
        yield run_of(record, place=place, number=number)


def runs_of_stream(stream: BinaryIO, *, file: str) -> Iterator[RecordedRun]:
    """Yield the runs of a stream without a name: JSON lines if its first line is a JSON value, else one value."""
    content = read_whole(stream, file)
    packed = content.startswith(GZIP_MAGIC)
    if packed:
        with reading(file), io.BufferedReader(UnpackedGzip(io.BytesIO(content))) as unpacked:
            content = read_whole(unpacked, file)
    first = content.lstrip().partition(b"\n")[0]
    try:
        parse_json(_decoded(first, place=file, packed=packed))
    except ValueError:
        yield from runs_of_json(content, file=file, packed=packed)
    else:
        yield from runs_of_lines(iter(io.BytesIO(content)), file=file, packed=packed)


def _decoded(raw: bytes, *, place: str, packed: bool) -> str:
    """Return a text that is to be parsed. Raises ``ImportProblem``, also if it holds too many values for that."""
    try:
        check_values(raw, size=0 if packed else len(raw))
    except TooMuch as error:
        raise ImportProblem(f"{place}: {error}: write one record on each line of a .jsonl file") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportProblem(
            f"{place}: byte {error.start} ({raw[error.start]:#04x}) is not UTF-8: convert the file to UTF-8"
        ) from error
