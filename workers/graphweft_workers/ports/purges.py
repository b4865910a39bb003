"""Purges: which apps something was erased from. Responders drop cached rows, and jobs what they are making of it.

The purge of a graph that took the place of another one also says what the app's graph needs to have since then. The bus
keeps it, so a copy of the graph server's data from before is found to be one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from graphweft_contracts import BusUnavailable
from graphweft_workers.ports.graph_basis import GraphBasis
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
    needed: GraphBasis | None = None
    """Of a purge without a place: no graph from before one with this basis must be served, or written to."""

    @property
    def key(self) -> str:
        """A later purge with the same key replaces this one."""
        if self.needed is not None:
            return f"{self.app_id}/graph"
        return f"{self.app_id}/{'' if self.partition is None else self.partition}"

    def encode(self) -> bytes:
        """Return it as JSON, for the bus."""
        body: dict[str, Any] = {"app": self.app_id, "partition": self.partition, "offset": self.offset}
        if self.erasure:
            body["erasure"] = self.erasure
        if self.needed is not None:
            body["needed"] = {"rules": self.needed.rules, "erasures": self.needed.erasures}
        return json.dumps(body).encode()

    @classmethod
    def decode(cls, text: bytes) -> Purge:
        """Return the purge that ``encode`` wrote. Raises ``ValueError`` for anything else."""
        try:
            body = cast("dict[str, Any]", json.loads(text))
            partition = body["partition"]
            number = None if partition is None else int(partition)
            erasure, basis, needed = str(body.get("erasure", "")), body.get("needed"), None
            if basis is not None:
                needed = GraphBasis(rules=str(basis["rules"]), erasures=int(basis["erasures"]))
            return cls(
                app_id=str(body["app"]), partition=number, offset=str(body["offset"]), erasure=erasure, needed=needed
            )
        except (LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError("the text is not a purge") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Purges:
    """The purges after a mark: of each key the last one."""

    found: Sequence[Purge]
    mark: int
    """Where to go on reading."""
    complete: bool = True
    """Whether these are all since the last read. If not, nothing is known of before: any rows may have been purged."""

    @property
    def needed(self) -> dict[str, GraphBasis]:
        """By app: the basis that its graph needs to have; none of an app whose graph never took another one's place."""
        return {each.app_id: each.needed for each in self.found if each.needed is not None}


async def put_purge(log: RecordLog, purge: Purge) -> None:
    """Add a purge; when it returns, every later ``purges_after`` finds it. Raises ``BusUnavailable``."""
    await log.put(purge.key, purge.encode())


async def needed_basis(log: RecordLog, app_id: str) -> GraphBasis | None:
    """Return the basis that the graph of an app needs to have, see ``Purges.needed``. Raises ``BusUnavailable``."""
    return (await purges_after(log, None)).needed.get(app_id)


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


class PurgeReader:
    """Knows the purges of a bus up to its last read; callers that ask at once share a read.

    Of a bus that was emptied or replaced, it reads at once all that is there now.
    """

    def __init__(self, log: RecordLog, *, handle: Callable[[Purges], None] = lambda _: None) -> None:
        """``handle`` gets the purges of each read, before those who asked for it go on."""
        self.needed: dict[str, GraphBasis] = {}
        """See ``Purges.needed``."""
        self.begun: int = 0
        """Reads that have begun. While it stays the same, a call of ``read`` learns no less than a later one."""
        self._log = log
        self._handle = handle
        self._mark: int | None = None
        self._reading = asyncio.Lock()
        self._ended: tuple[int, BusUnavailable | None] = (0, None)
        """The number of the last read, and why it failed."""

    @property
    def has_read(self) -> bool:
        """Whether anything is known."""
        return self._mark is not None

    async def read(self) -> None:
        """Learn of all purges that were put before this call. Raises ``BusUnavailable``."""
        begun = self.begun
        async with self._reading:
            if self._ended[0] <= begun:
                self.begun += 1
                self._ended = self.begun, await self._read()
            if (error := self._ended[1]) is not None:
                raise error

    async def _read(self) -> BusUnavailable | None:
        try:
            found = await purges_after(self._log, self._mark)
            if self._mark is not None and not found.complete:
                self._mark = None
                found = await purges_after(self._log, None)
        except BusUnavailable as error:
            return error
        if self._mark is None:
            found = replace(found, complete=False)
            self.needed.clear()
        self.needed |= found.needed
        self._mark = found.mark
        self._handle(found)
        return None
