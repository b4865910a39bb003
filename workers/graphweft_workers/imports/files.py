"""Reads files with recorded runs. Files with single items are read by ``items``.

JSON-lines files are read line by line, so they can have any size. A ``.json`` file is read whole into memory.
"""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from graphweft_workers.imports.runs import ImportProblem, Run, parse_json, records_in, run_of

STANDARD_INPUT: Final = "-"
LINES: Final = (".jsonl", ".ndjson")
WHOLE: Final = (".json",)
GZIP_MAGIC: Final = b"\x1f\x8b"
DAMAGED: Final = (EOFError, gzip.BadGzipFile, zlib.error)
"""Errors of the gzip module. BadGzipFile is also an OSError, so catch these first."""


def read_runs(path: Path | str) -> Iterator[Run]:
    """Yield the runs of a ``.jsonl`` or ``.json`` file, plain or ``.gz``, in file order; ``-`` is standard input.

    Standard input can have any of these forms. Raises ``ImportProblem`` at the first invalid record, after the runs
    before it have been yielded.
    """
    file = str(path)
    try:
        if file == STANDARD_INPUT:
            yield from runs_of_stream(sys.stdin.buffer, file="<stdin>")
            return
        name = file.lower().removesuffix(".gz")
        if not name.endswith((*LINES, *WHOLE)):
            raise ImportProblem(
                f"{file}: unknown file type: expected .jsonl, .ndjson or .json, optionally with .gz; rename the file, "
                "or pass its content on standard input as '-'"
            )
        with _opened(Path(path)) as stream:
            if name.endswith(WHOLE):
                yield from runs_of_json(stream.read(), file=file)
            else:
                yield from runs_of_lines(stream, file=file)
    except DAMAGED as error:
        raise damaged(file, error) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ImportProblem(f"{file}: cannot be read ({reason}); check the path") from error


def runs_of_lines(lines: Iterator[bytes] | BinaryIO, *, file: str) -> Iterator[Run]:
    """Yield the runs of JSON lines: one value on each line; empty lines are skipped."""
    number = 0
    for line, raw in enumerate(lines, start=1):
        place = f"{file}:{line}"
        text = _decoded(raw, place=place)
        if not text.strip():
            continue
        try:
            value = parse_json(text)
        except ValueError as error:
            raise ImportProblem(
                f"{place}: invalid JSON ({error}); a .jsonl file has one JSON value on each line; name a file with one "
                "value over several lines .json"
            ) from error
        for where, record in records_in(value, place=place):
            yield run_of(record, place=where, number=number)
            number += 1


def runs_of_json(content: bytes, *, file: str) -> Iterator[Run]:
    """Yield the runs of one JSON value: a record or an array of records."""
    try:
        value = parse_json(_decoded(content, place=file))
    except ValueError as error:
        raise ImportProblem(
            f"{file}: invalid JSON ({error}); name a file with one JSON value on each line .jsonl"
        ) from error
    for number, (place, record) in enumerate(records_in(value, place=file)):
        yield run_of(record, place=place, number=number)


def _opened(path: Path) -> BinaryIO:
    return io.BufferedReader(gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def runs_of_stream(stream: BinaryIO, *, file: str) -> Iterator[Run]:
    """Yield the runs of a stream without a name: JSON lines if its first line is a JSON value, else one value."""
    content = stream.read()
    if content.startswith(GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except DAMAGED as error:
            raise damaged(file, error) from error
    first = content.lstrip().partition(b"\n")[0]
    try:
        parse_json(_decoded(first, place=file))
    except ValueError:
        yield from runs_of_json(content, file=file)
    else:
        yield from runs_of_lines(iter(content.splitlines()), file=file)


def damaged(file: str, error: Exception) -> ImportProblem:
    """Return the error for a damaged gzip file."""
    return ImportProblem(f"{file}: the gzip content is damaged or incomplete ({error}): copy the file again")


def _decoded(raw: bytes, *, place: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportProblem(
            f"{place}: byte {error.start} ({raw[error.start]:#04x}) is not UTF-8: convert the file to UTF-8"
        ) from error
