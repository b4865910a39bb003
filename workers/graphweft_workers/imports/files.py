"""Where recorded runs come from: the one module of the importer that reads anything.

JSON-lines files are read line by line, so their size does not matter; a ``.json`` file is read whole.
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
_LINES: Final = (".jsonl", ".ndjson")
_WHOLE: Final = (".json",)
_GZIP_MAGIC: Final = b"\x1f\x8b"
_DAMAGED: Final = (EOFError, gzip.BadGzipFile, zlib.error)
"""What the gzip module raises; of these, BadGzipFile is an OSError too and must be caught before that."""


def read_runs(path: Path | str) -> Iterator[Run]:
    """Read the runs of a ``.jsonl`` or ``.json`` file, each also as ``.gz``, in file order; ``-`` is standard input.

    Standard input may be either form, compressed or not. Raises ``ImportProblem`` when it comes to something that it
    cannot read; the runs before that have been handed out by then.
    """
    file = str(path)
    try:
        if file == STANDARD_INPUT:
            yield from runs_of_stream(sys.stdin.buffer, file="<stdin>")
            return
        name = file.lower().removesuffix(".gz")
        if not name.endswith((*_LINES, *_WHOLE)):
            raise ImportProblem(
                f"{file}: the file name says neither .jsonl nor .json (each may end in .gz); rename the file, "
                "or pass its content on standard input as '-'"
            )
        with _opened(Path(path)) as stream:
            if name.endswith(_WHOLE):
                yield from runs_of_json(stream.read(), file=file)
            else:
                yield from runs_of_lines(stream, file=file)
    except _DAMAGED as error:
        raise _damaged(file, error) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ImportProblem(f"{file}: cannot be read ({reason}); check the path") from error


def runs_of_lines(lines: Iterator[bytes] | BinaryIO, *, file: str) -> Iterator[Run]:
    """Read JSON lines: one value a line, empty lines skipped."""
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
                f"{place}: the line is not JSON ({error}); a .jsonl file has one JSON value a line, "
                "a file that is one JSON value over several lines must be named .json"
            ) from error
        for where, record in records_in(value, place=place):
            yield run_of(record, place=where, number=number)
            number += 1


def runs_of_json(content: bytes, *, file: str) -> Iterator[Run]:
    """Read one JSON value: a record or an array of records."""
    try:
        value = parse_json(_decoded(content, place=file))
    except ValueError as error:
        raise ImportProblem(
            f"{file}: the content is not JSON ({error}); a file with one JSON value a line must be named .jsonl"
        ) from error
    for number, (place, record) in enumerate(records_in(value, place=file)):
        yield run_of(record, place=place, number=number)


def _opened(path: Path) -> BinaryIO:
    return io.BufferedReader(gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def runs_of_stream(stream: BinaryIO, *, file: str) -> Iterator[Run]:
    """Read a stream that has no name to tell its form: lines, unless its first line is no JSON value in itself."""
    content = stream.read()
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except _DAMAGED as error:
            raise _damaged(file, error) from error
    first = content.lstrip().partition(b"\n")[0]
    try:
        parse_json(_decoded(first, place=file))
    except ValueError:
        yield from runs_of_json(content, file=file)
    else:
        yield from runs_of_lines(iter(content.splitlines()), file=file)


def _damaged(file: str, error: Exception) -> ImportProblem:
    return ImportProblem(f"{file}: the gzip content is damaged or cut off ({error}); copy it again")


def _decoded(raw: bytes, *, place: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportProblem(
            f"{place}: byte {error.start} ({raw[error.start]:#04x}) is not UTF-8; convert the file to UTF-8"
        ) from error
