"""Purges: which apps something was erased from. Responders drop cached rows, and jobs what they are making of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from graphweft_workers.ports.records import RecordLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Rows of an app that were read before the graph had an erasure at a place of the log must not be served.

    Without a place, the graph has it already: rows that were read before the purge must not be served.
    """

    app_id: str
    partition: int | None = None
    offset: str = ""
    erasure: str = ""
    """Names an erasure from log and archive, each one differently; empty if the log still holds what was erased."""

    @property
    def key(self) -> str:
        """A later purge with the same key replaces this one."""
        return f"{self.app_id}/{'' if self.partition is None else self.partition}"

    def encode(self) -> bytes:
        """Return it as JSON, for the bus."""
        body = {"app": self.app_id, "partition": self.partition, "offset": self.offset}
        return json.dumps(body | ({"erasure": self.erasure} if self.erasure else {})).encode()

    @classmethod
    def decode(cls, text: bytes) -> Purge:
        """Return the purge that ``encode`` wrote. Raises ``ValueError`` for anything else."""
        try:
            body = cast("dict[str, Any]", json.loads(text))
            partition = body["partition"]
            number = None if partition is None else int(partition)
            erasure = str(body.get("erasure", ""))
            return cls(app_id=str(body["app"]), partition=number, offset=str(body["offset"]), erasure=erasure)
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the text is not a purge") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Purges:
    """The purges after a mark: of each key the last one."""

    found: Sequence[Purge]
    mark: int
    """Where to go on reading."""
    complete: bool = True
    """Whether the log was followed without a gap. If not, it was recreated: any rows may have been purged."""


async def put_purge(log: RecordLog, purge: Purge) -> None:
    """Add a purge; when it returns, every later ``purges_after`` finds it. Raises ``BusUnavailable``."""
    await log.put(purge.key, purge.encode())


async def purges_after(log: RecordLog, mark: int | None) -> Purges:
    """Return the purges after a mark; for None those of all time, with the mark that is reached.

    What somebody else has put there is left out. Raises ``BusUnavailable``.
    """
    read = await log.after(mark)
    found: list[Purge] = []
    for record in read.found.values():
        with contextlib.suppress(ValueError):
            found.append(Purge.decode(record))
    return Purges(found=found, mark=read.mark, complete=read.complete)
