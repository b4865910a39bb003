"""Purges: which apps something was erased from. Responders drop cached rows, and jobs what they are making of it.

The purge of a graph that took the place of another one also says what the app's graph needs to have since then. The bus
keeps it, so a copy of the graph server's data from before is found to be one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

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
    """Whether the log was followed without a gap. If not, it was recreated: any rows may have been purged."""

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
