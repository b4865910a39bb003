"""The file of a snapshot: a graph at a place of the log.

The first line is a hash of everything after it. The second is a header in JSON. The rest is compressed by Zstandard: a
line for each node and relationship, in the form of the graph store.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

import zstandard

from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_workers.ports.graph_store import Checkpoint, Progress
from graphweft_workers.text.content_limits import MOST_LINE_BYTES, TooMuch, check_values

FORMAT: Final = 1
_LEVEL: Final = 3
_CHUNK: Final = 1024**2
_WINDOW: Final = 8 * 1024**2
_UNPACKED: Final = 16 * 1024**2
_RATIO: Final = 50
_MOST_KEYS: Final = 250
"""Indexed properties of a label. Some hundred more end a graph server."""
_MOST_INDEXES: Final = 1_000


class InvalidSnapshot(Exception):
    """The file is not a whole snapshot of this format; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a snapshot holds beside the graph."""

    app_id: str
    key: str
    """What the graph follows from; see ``snapshot_key``."""
    events: int
    """Events with mutations up to the place."""
    progress: Mapping[int, Progress]
    """The checkpoints of the graph."""
    keys: frozenset[tuple[str, str]]
    indexes: Sequence[SearchIndex]


class SnapshotWriter:
    """Compresses the lines of a graph as they come."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
        self._parts: list[bytes] = []
        self.lines = 0

    def add(self, line: bytes) -> None:
        """Add a line; it holds no line break."""
        self._parts.append(self._compressor.compress(line + b"\n"))
        self.lines += 1

    def finish(self, snapshot: Snapshot) -> bytes:
        """Return the file. Nothing can be added then."""
        header = {
            "format": FORMAT,
            "app": snapshot.app_id,
            "key": snapshot.key,
            "events": snapshot.events,
            "lines": self.lines,
            "progress": {str(number): asdict(each) for number, each in snapshot.progress.items()},
            "keys": sorted(snapshot.keys),
            "indexes": [asdict(index) for index in snapshot.indexes],
        }
        body = json.dumps(header).encode() + b"\n" + b"".join(self._parts) + self._compressor.flush()
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def read_snapshot(data: bytes) -> tuple[Snapshot, Iterator[bytes]]:
    """Return what a file holds, and the lines of the graph.

    Raises ``InvalidSnapshot``, and the lines do if there are others than the header says, or one is too long.
    """
    digest, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise InvalidSnapshot("it is damaged: its hash is another one")
    start, _, packed = body.partition(b"\n")
    try:
        check_values(start)
        header = json.loads(start)
        if header["format"] != FORMAT:
            raise InvalidSnapshot(f"its format is {header['format']!r}; this version reads only {FORMAT}")
        lines = int(header["lines"])
        snapshot = Snapshot(
            app_id=header["app"],
            key=header["key"],
            events=int(header["events"]),
            progress={int(number): _progress(each) for number, each in header["progress"].items()},
            keys=frozenset((str(label), str(name)) for label, name in header["keys"]),
            indexes=[SearchIndex(**index | {"properties": tuple(index["properties"])}) for index in header["indexes"]],
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidSnapshot(f"it is damaged: {type(error).__name__} in its header") from error
    labels = Counter(label for label, _ in snapshot.keys)
    if any(count > _MOST_KEYS for count in labels.values()) or len(snapshot.indexes) > _MOST_INDEXES:
        raise InvalidSnapshot(f"it asks for more than {_MOST_KEYS} indexes of a label")
    return snapshot, _lines(packed, lines)


def _progress(values: Mapping[str, Any]) -> Progress:
    return Progress(checkpoint=Checkpoint(**values["checkpoint"]), note=values["note"])


def _lines(packed: bytes, expected: int) -> Iterator[bytes]:
    found = size = 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(packed) as reader:
            stream = io.BufferedReader(cast("Any", reader), buffer_size=_CHUNK)
            while line := stream.readline(MOST_LINE_BYTES + 1):
                found, size = found + 1, size + len(line)
                if (
                    line == b"\n"
                    or len(line) > MOST_LINE_BYTES
                    or found > expected
                    or size > max(_UNPACKED, _RATIO * len(packed))
                ):
                    raise InvalidSnapshot(f"it is damaged: it holds too much, or nothing, at its line {found}")
                check_values(line)
                yield line.removesuffix(b"\n")
    except (zstandard.ZstdError, TooMuch) as error:
        raise InvalidSnapshot("it is damaged: its graph cannot be unpacked") from error
    if found != expected:
        raise InvalidSnapshot(f"it is damaged: it holds {found:,} lines and not {expected:,}")
