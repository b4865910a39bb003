"""How much a file from outside may hold. Every reader of such files asks here before it parses.

A parser makes up to two hundred bytes of memory out of one, and a packed byte may stand for a thousand. So what is
counted is bytes when unpacked, lines and JSON values, each in one cheap pass.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, Final, cast

MOST_VALUES: Final = 500_000
"""JSON values of one text that is parsed: at most 100 MB of memory."""
MOST_LINE_BYTES: Final = 16_000_000
"""Bytes of a line: more than an event can have, however its text is escaped."""
_PACKED_BYTES: Final = 4 * 1024**2
_PACKED_RATIO: Final = 16
_PACKED_LINES: Final = 250_000
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A JSON string; one without an end goes on to the end of the text, so that the search stays linear."""
_PIECE: Final = re.compile(rb'[^"]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)[^"]*+){0,4096}+', re.DOTALL)
"""Some strings and what is between them, so that replacing them takes little memory."""


class TooMuch(ValueError):
    """A text holds more than it may. The message says what, and how much is allowed."""


def count_json(body: bytes, *, enough: int) -> int:
    """Return an upper bound of the values of a JSON text, those in objects and arrays included.

    Beyond ``enough`` it is exact, except that blanks in an empty object or array count. Below, signs in strings count.
    """
    count = 1 + _signs(body)
    if count <= enough:
        return count
    count = 1
    for piece in _PIECE.finditer(body):
        bare = _STRING.sub(b'""', piece[0])
        count += _signs(bare) - bare.count(b"[]") - bare.count(b"{}")
    return count


def _signs(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def check_values(text: bytes) -> None:
    """Raise ``TooMuch`` for a text that holds more JSON values than may be parsed at once."""
    if count_json(text, enough=MOST_VALUES) > MOST_VALUES:
        raise TooMuch(f"it holds more than {MOST_VALUES:,} values")


def zstd_lines(data: bytes, *, most_bytes: int, most_lines: int) -> Iterator[bytes]:
    """Yield the lines of Zstandard frames without their ends, as they are unpacked.

    Raises ``TooMuch``, also for a line that is too long or holds too many values, and ``zstandard.ZstdError``.
    """
    import zstandard  # the gateway counts JSON without it

    unpacker = zstandard.ZstdDecompressor(max_window_size=most_bytes)
    with unpacker.stream_reader(data, read_across_frames=True) as reader:
        stream = io.BufferedReader(cast("Any", reader), buffer_size=1 << 20)
        size = number = 0
        while line := stream.readline(MOST_LINE_BYTES + 1):
            size, number = size + len(line), number + 1
            if size > most_bytes:
                raise TooMuch(f"it unpacks to more than {most_bytes:,} bytes")
            if number > most_lines:
                raise TooMuch(f"it holds more than {most_lines:,} lines")
            if len(line) > MOST_LINE_BYTES:
                raise TooMuch(f"its line {number} has more than {MOST_LINE_BYTES:,} bytes")
            check_values(line)
            yield line.removesuffix(b"\n")


class PackedFile:
    """Counts what comes out of a packed file, which may be much more than what its bytes cost whoever made it."""

    def __init__(self, size: int) -> None:
        """``size`` is that of the file as it is."""
        self._most_bytes = _PACKED_BYTES + _PACKED_RATIO * size
        self._most_lines = _PACKED_LINES + size // 2
        self._bytes = self._lines = 0

    def add(self, text: bytes) -> None:
        """Count more of the content. Raises ``TooMuch``."""
        self._bytes += len(text)
        if self._bytes > self._most_bytes:
            raise TooMuch(f"it unpacks to more than {self._most_bytes:,} bytes: unpack it, and name the unpacked file")
        self._lines += text.count(b"\n")
        if self._lines > self._most_lines:
            raise TooMuch(f"it unpacks to more than {self._most_lines:,} lines: unpack it, and name the unpacked file")
