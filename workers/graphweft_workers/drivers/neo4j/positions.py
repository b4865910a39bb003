"""Up to where the graphs of a Neo4j server are complete: nodes in the database that is there before any app.

With a server for each app there is no such database, and no positions are kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from graphweft_workers.drivers.neo4j.calls import run, run_admin
from graphweft_workers.drivers.neo4j.databases import Databases
from graphweft_workers.drivers.neo4j.statements import VALUES, timed
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import PositionMove

_CONSTRAINT: Final = "CREATE CONSTRAINT graphweft_position IF NOT EXISTS FOR (n:__Position) REQUIRE n.place IS UNIQUE"
# The write of ``lock`` comes before the comparison: what is read before a lock does not count.
_MOVE: Final = (
    f"MERGE (p:__Position {{place: ${VALUES}.place}}) ON CREATE SET p.template = ${VALUES}.template, "
    f"p.partition = ${VALUES}.partition, p.app = '', p.text = '' SET p.lock = true WITH p "
    f"WHERE p.text = ${VALUES}.before SET p.text = ${VALUES}.after "
    f"FOREACH (each IN ${VALUES}.reached | MERGE (a:__Position {{place: ${VALUES}.place + '/' + each[0]}}) "
    "SET a.template = p.template, a.partition = p.partition, a.app = each[0], a.text = each[1]) RETURN count(*)"
)
_READ: Final = "MATCH (p:__Position) WHERE p.template = $template AND p.app = '' RETURN p.partition, p.text"
_REACHED: Final = (
    "MATCH (p:__Position) WHERE p.template = $template AND p.partition = $partition AND p.app <> '' "
    "RETURN p.app, p.text"
)
_FORGET: Final = "MATCH (p:__Position) WHERE p.template = $template AND p.app = $app DELETE p"


class Neo4jPositions:
    """The positions of the graphs of one template."""

    def __init__(self, databases: Databases, template: str, timeout_s: float) -> None:
        self._databases = databases
        self._template = template
        self._timeout_s = timeout_s
        self._constrained = False
        self._constraining = asyncio.Lock()

    async def read(self) -> dict[int, CommittedPosition] | None:
        """See ``GraphStore.positions``."""
        if not self._databases.one_server:
            return None
        rows = await self._rows(_READ, {"template": self._template})
        return {int(partition): CommittedPosition.of_text(text) for partition, text in rows if text}

    async def reached(self, partition: int) -> Mapping[str, str]:
        """See ``GraphStore.reached``."""
        if not self._databases.one_server:
            return {}
        rows = await self._rows(_REACHED, {"template": self._template, "partition": partition})
        return {str(app_id): str(offset) for app_id, offset in rows}

    async def move(self, move: PositionMove) -> bool:
        """Move a position; return whether the server said ``before``."""
        if not self._databases.one_server:
            return True
        values = {
            "place": f"{self._template}/{move.partition}",
            "template": self._template,
            "partition": move.partition,
            "before": "" if move.before is None else move.before.to_text(),
            "after": move.after.to_text(),
            "reached": [list(pair) for pair in move.reached.items()],
        }
        await self._constrain()
        async with self._databases.session(self._databases.server(), self._timeout_s) as session:
            [[moved]] = await run(session, timed(_MOVE, self._timeout_s), {VALUES: values})
        return bool(moved)

    async def forget(self, app_id: str) -> None:
        """Name an app no more."""
        if self._databases.one_server:
            async with self._databases.session(self._databases.server(), self._timeout_s) as session:
                await run(session, timed(_FORGET, self._timeout_s), {"template": self._template, "app": app_id})

    async def _constrain(self) -> None:
        async with self._constraining:
            if not self._constrained:
                async with self._databases.session(self._databases.server(), self._timeout_s) as session:
                    await run_admin(session, _CONSTRAINT)
                self._constrained = True

    async def _rows(self, statement: str, params: Mapping[str, Any]) -> list[list[Any]]:
        server = self._databases.server()
        # Of the leader: what another member says may be old, and would look like a server that lost something.
        async with self._databases.session(server, self._timeout_s) as session:
            return await run(session, timed(statement, self._timeout_s), dict(params))
