"""Reads files with many items: JSON lines of any length, or one JSON document of a limited size.

A line that cannot be read is counted, and the next one is read. Memory is bounded by the limits below.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from pydantic import JsonValue

from graphweft_workers.imports.files import GZIP_MAGIC, LINES, STANDARD_INPUT, WHOLE, reading
from graphweft_workers.imports.item_fields import in_snake_case
from graphweft_workers.imports.report import ImportReport, RefusedItem
from graphweft_workers.imports.runs import ImportProblem, parse_json
from graphweft_workers.text.content_limits import TooMuch, UnpackedGzip, check_values

MOST_LINE_BYTES: Final = 4 * 1024**2
"""Largest line. A bus takes events of 1 MB, so a larger item could not be sent."""
MOST_DOCUMENT_BYTES: Final = 64 * 1024**2
"""Largest JSON document, unpacked. It is held in memory as a whole."""
_SKIPPED_AT_ONCE: Final = 1 << 20
_COUNTS: Final = frozenset({"count", "total", "total_count", "total_results", "total_items", "total_memories"})
_NEXT: Final = frozenset({"next", "next_page", "next_url", "next_cursor", "next_page_token", "has_more", "has_next"})
_ABOUT_PAGES: Final = ("pagination", "paging", "page_info", "meta", "links", "_links")
"""Objects in which an answer says these things."""
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class ImportItem(NamedTuple):
    """A JSON value of a file, and its place for errors: ``a.jsonl:7`` or ``a.json: results[2]``."""

    place: str
    value: JsonValue


def read_items(path: Path | str, sections: Sequence[str], report: ImportReport) -> Iterator[ImportItem]:
    """Yield the items of a file, plain or gzip; ``-`` is standard input.

    A JSON value is an item, an array of items, or an object with such arrays under the names ``sections``, which are
    read in this order. Other arrays of that object are counted as left out. Raises ``ImportProblem`` for a file that
    cannot be read, or is neither JSON lines nor a JSON document.
    """
    file = str(path)
    name = "standard input" if file == STANDARD_INPUT else file
    with reading(name):
        if file == STANDARD_INPUT:
            yield from _items(sys.stdin.buffer, name, file, sections, report)
            return
        with Path(path).open("rb") as stream:
            yield from _items(stream, name, file, sections, report)


def _items(raw: BinaryIO, name: str, file: str, sections: Sequence[str], report: ImportReport) -> Iterator[ImportItem]:
    stream = _unpacked(raw)
    if stream.peek(2)[:2] in _UTF_16:
        raise ImportProblem(f"{name}: it is UTF-16: convert the file to UTF-8")
    ending = file.lower().removesuffix(".gz")
    if ending.endswith(LINES):
        yield from _lines(stream, name, 0, sections, report)
        return
    first = b""
    if not ending.endswith(WHOLE):  # standard input, or an unknown name: the first line tells
        number = 0
        while not first.strip():
            if not (first := stream.readline(MOST_DOCUMENT_BYTES + 1)):
                return
            number += 1
        try:
            value = _value(first)
        except (ValueError, RefusedItem):
            pass  # a document of several lines, or nothing that can be read
        else:
            yield from _inside(value, f"{name}:{number}", sections, report)
            yield from _lines(stream, name, number, sections, report)
            return
    yield from _inside(_document(first, stream, name), f"{name}: ", sections, report)


def _unpacked(raw: BinaryIO) -> io.BufferedReader:
    stream = cast("io.BufferedReader", raw)
    if stream.peek(2)[:2] == GZIP_MAGIC:
        return io.BufferedReader(UnpackedGzip(stream))
    return stream


def _lines(
    stream: io.BufferedReader, name: str, number: int, sections: Sequence[str], report: ImportReport
) -> Iterator[ImportItem]:
    while line := stream.readline(MOST_LINE_BYTES + 1):
        number += 1
        place = f"{name}:{number}"
        if len(line) > MOST_LINE_BYTES:
            while not line.endswith(b"\n") and (line := stream.readline(_SKIPPED_AT_ONCE)):
                pass
            report.refuse(place, f"the line has more than {MOST_LINE_BYTES:,} bytes")
            continue
        if not line.strip():
            continue
        try:
            value = _value(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
        except (RefusedItem, TooMuch) as refused:
            report.refuse(place, str(refused))
        except ValueError:
            report.refuse(place, "the line is not JSON")
        else:
            yield from _inside(value, place, sections, report)


def _document(first: bytes, stream: io.BufferedReader, name: str) -> JsonValue:
    content = first + stream.read(max(0, MOST_DOCUMENT_BYTES + 1 - len(first)))
    if len(content) > MOST_DOCUMENT_BYTES:
        raise ImportProblem(
            f"{name}: a JSON document has at most {MOST_DOCUMENT_BYTES:,} bytes: write one item on each line, for "
            "example with jq -c '.[]', and name the file .jsonl"
        )
    try:
        return _value(content)
    except RefusedItem as refused:
        raise ImportProblem(f"{name}: {refused}: convert the file to UTF-8") from None
    except TooMuch as error:
        raise ImportProblem(f"{name}: {error}: write one item on each line, and name the file .jsonl") from None
    except ValueError as error:
        raise ImportProblem(
            f"{name}: not JSON ({error}): expected a JSON document, or one JSON value on each line of a .jsonl file"
        ) from None


def _value(raw: bytes) -> JsonValue:
    check_values(raw)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RefusedItem("it is not UTF-8") from None
    return parse_json(text)


def _inside(value: JsonValue, place: str, sections: Sequence[str], report: ImportReport) -> Iterator[ImportItem]:
    """Yield the items inside one JSON value."""
    whole = place.endswith(": ")
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield ImportItem(f"{place}[{number}]", item)
        return
    arrays: dict[str, list[JsonValue]] = {}
    if isinstance(value, dict) and "id" not in value and "uuid" not in value:
        arrays = {name: items for name, items in value.items() if isinstance(items, list)}
    if arrays.keys().isdisjoint(sections):
        yield ImportItem(place.removesuffix(": ") if whole else place, value)
        return
    _note_page(cast("dict[str, JsonValue]", value), sum(len(arrays.get(name, ())) for name in sections), report)
    for name in sections:
        for number, item in enumerate(arrays.pop(name, [])):
            yield ImportItem(f"{place}{'' if whole else ': '}{name}[{number}]", item)
    for name, items in arrays.items():
        report.leave_out(name if len(name) < 40 and name.isidentifier() else "an array", len(items))


def _note_page(value: dict[str, JsonValue], items: int, report: ImportReport) -> None:
    """Note what an object with items says of further pages."""
    about = [value, *(each for name in _ABOUT_PAGES if isinstance(each := value.get(name), dict))]
    said = {in_snake_case(name): each for part in about for name, each in part.items()}
    counts = [each for name, each in said.items() if name in _COUNTS and type(each) is int]
    more = any(each not in (None, False, "", 0, {}) for name, each in said.items() if name in _NEXT)
    report.page(items, max(counts, default=0), has_more=more)
