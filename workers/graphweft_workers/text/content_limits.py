"""How much a file from outside may hold. Every reader of such files asks here before it parses.

A parser makes up to two hundred bytes of memory out of one, and a packed byte may stand for a thousand. So what is
counted is bytes when unpacked, lines and JSON values, each in one cheap pass.
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast, override

if TYPE_CHECKING:
    from collections.abc import Buffer

MOST_VALUES: Final = 500_000
"""JSON values of one text that is parsed: at most 100 MB of memory."""
MOST_LINE_BYTES: Final = 16_000_000
"""Bytes of a line: more than an event can have, however its text is escaped."""
_BYTES_PER_VALUE: Final = 16
_PACKED_BYTES: Final = 8 * 1024**2
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


def check_values(text: bytes, *, size: int = 0) -> None:
    """Raise ``TooMuch`` for a text that holds more JSON values than may be parsed at once.

    ``size`` is how many bytes of the text its sender had to write: a large file may hold more.
    """
    most = MOST_VALUES + size // _BYTES_PER_VALUE
    if count_json(text, enough=most) > most:
        raise TooMuch(f"it holds more than {most:,} values")


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


class UnpackedGzip(io.RawIOBase):
    """The content of a gzip stream, which may be much more than what its bytes cost whoever made it.

    Reading raises ``TooMuch`` when that is out of proportion, and the errors of the gzip module.
    """

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = _CountedStream(packed)
        self._content = gzip.GzipFile(fileobj=self._packed)
        self._bytes = self._lines = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        count = self._content.readinto(view)
        self._bytes += count
        self._lines += bytes(view[:count]).count(b"\n")
        most_bytes = _PACKED_BYTES + _PACKED_RATIO * self._packed.count
        most_lines = _PACKED_LINES + self._packed.count // 2
        if self._bytes > most_bytes or self._lines > most_lines:
            what = f"{most_bytes:,} bytes" if self._bytes > most_bytes else f"{most_lines:,} lines"
            raise TooMuch(f"{self._packed.count:,} bytes of it unpack to more than {what}: unpack the file first")
        return count


class _CountedStream(io.RawIOBase):
    """A stream that counts what is read from it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.count = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def read(self, size: int = -1, /) -> bytes:
        found = self._stream.read(size)
        self.count += len(found)
        return found
