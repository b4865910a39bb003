"""The database of each app on Neo4j: one per app, one server per app, or the only one of a server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final

import neo4j
from neo4j import AsyncDriver, AsyncGraphDatabase, AsyncSession, NotificationMinimumSeverity

from graphweft_contracts import GraphUnavailable, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.drivers.graph_owners import GraphOwners
from graphweft_workers.drivers.neo4j import errors
from graphweft_workers.drivers.neo4j.calls import failing, run, run_admin
from graphweft_workers.drivers.neo4j.dialect import quoted
from graphweft_workers.drivers.neo4j.errors import code_of
from graphweft_workers.drivers.neo4j.login import Login, shared_login
from graphweft_workers.drivers.neo4j.namespaces import LIVE, Namespace
from graphweft_workers.drivers.neo4j.statements import (
    CLAIM,
    LIST_CONSTRAINTS,
    OWNER,
    constraints,
    database_name,
    timed,
)
from graphweft_workers.drivers.neo4j.timing import NEO4J_TIMING, Neo4jTiming
from graphweft_workers.drivers.neo4j.url import APP, split_neo4j_url, tls_options
from graphweft_workers.ports.graph_store import MarksLost, OtherGraph, PlaceTaken

_OLDEST: Final = (5, 23)
"""The first version with ``CALL (n) { … }``."""


@dataclass(frozen=True, slots=True)
class Database:
    """The place of an app's graph."""

    driver: AsyncDriver
    uri: str
    database: str | None
    """None: the server's only database."""
    made: bool
    """Whether graphweft creates the database."""
    own: bool = False
    """Whether the place is the app's alone, by its name."""


class Databases:
    """Finds, creates and removes the databases, and opens sessions on them."""

    def __init__(
        self,
        url: str,
        *,
        graph_template: str,
        beside: str | None = None,
        timeout_s: float,
        clock: Clock = SYSTEM_CLOCK,
        timing: Neo4jTiming = NEO4J_TIMING,
    ) -> None:
        """``timeout_s`` is the limit of one query. ``beside`` is the template of second graphs: see ``space``."""
        self._beside = beside
        self._url = split_neo4j_url(url)
        self._timing = timing
        self._template = graph_template
        self._timeout_s = timeout_s
        self._clock = clock
        self._drivers: dict[str, AsyncDriver] = {}
        self._logins: dict[str, Login] = {}
        self._multiple: dict[str, bool] = {}
        """For each server, whether it has a database per app."""
        self.owners = GraphOwners(self._ask_owner, clock=clock, fresh_s=timing.owner_s)

    @property
    def one_server(self) -> bool:
        """Whether all apps are on one server."""
        return self._url.one_server

    @property
    def uri(self) -> str:
        """The address of the only server; empty where there are several."""
        return self._url.uri if self.one_server else ""

    @property
    def has_second(self) -> bool:
        """Whether these are second graphs."""
        return self._beside is not None

    async def check(self) -> None:
        """Raise ``GraphUnavailable`` if the server does not answer or is too old; with a server per app, do nothing."""
        if self._url.one_server:
            await self._ask_edition(self._driver(self._url.uri), self._url.uri)

    def server(self) -> Database:
        """Return a database of the only server that is there before any app."""
        named = self._url.database if APP not in self._url.database else ""
        return Database(self._driver(self._url.uri), self._url.uri, named or None, made=False)

    async def remove(self, graph: Database) -> None:
        """Drop a database that graphweft made."""
        system = Database(graph.driver, graph.uri, "system", made=False)
        async with self.session(system, self._timing.admin_s) as session:
            await run_admin(session, f"DROP DATABASE {quoted(graph.database or '')} IF EXISTS WAIT")

    def forget(self, app_id: str) -> None:
        """Check the next time whether the database is the app's."""
        self.owners.forget(app_id)

    async def aclose(self) -> None:
        """Close the connections."""
        while self._drivers:
            _, driver = self._drivers.popitem()
            await driver.close()

    def _driver(self, uri: str) -> AsyncDriver:
        if uri not in self._drivers:
            library: Any = AsyncGraphDatabase
            address, options = tls_options(self._url, uri)
            self._drivers[uri] = library.driver(
                address,
                **options,
                auth=(login := self._login(uri)),
                resolver=login.resolve,
                connection_timeout=5.0,
                connection_acquisition_timeout=self._timing.grace_s,
                notifications_min_severity=NotificationMinimumSeverity.OFF,
                telemetry_disabled=True,
                user_agent="graphweft",
            )
        return self._drivers[uri]

    def _login(self, uri: str) -> Login:
        if uri not in self._logins:
            self._logins[uri] = shared_login(self._url, uri, clock=self._clock, timing=self._timing)
        return self._logins[uri]

    async def graph(self, app_id: str) -> Database:
        """Return the app's database; it may not exist."""
        uri = self._url.uri.replace(APP, app_id)
        driver = self._driver(uri)
        own = not self._url.one_server
        if self._url.database:
            name = self._url.database.replace(APP, app_id)
            return Database(driver, uri, name, made=False, own=own or APP in self._url.database)
        if own or not await self._has_databases(driver, uri):
            return Database(driver, uri, None, made=False, own=own)
        return Database(driver, uri, database_name(app_id, self._template), made=True, own=True)

    def space(self, app_id: str) -> Namespace:
        """Return the namespace of the app's graph in its database: that of its second graph, if ``beside`` is given."""
        return LIVE if self._beside is None else Namespace(channels.graph_name(app_id, self._beside))

    async def _has_databases(self, driver: AsyncDriver, uri: str) -> bool:
        if uri not in self._multiple:
            self._multiple[uri] = await self._ask_edition(driver, uri)
        return self._multiple[uri]

    async def _ask_edition(self, driver: AsyncDriver, uri: str) -> bool:
        """Return whether the server supports a database per app. Raises ``GraphUnavailable`` if it is too old."""
        named = self._url.database if APP not in self._url.database else ""
        server = Database(driver, uri, named or None, made=False)
        async with self.session(server, self._timeout_s, access=neo4j.READ_ACCESS) as session:
            result = await session.run("CALL dbms.components() YIELD versions, edition")
            [[versions, edition], *_] = await result.values()
        numbers = re.match(r"(\d+)\.(\d+)", versions[0])
        if numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST:
            raise GraphUnavailable(f"Neo4j {versions[0]} is too old: graphweft needs 5.23 or later", retry_after_s=5.0)
        return bool(edition != "community")

    async def claimed(self, app_id: str) -> Database:
        """Return the app's graph, created if needed. Raises ``PlaceTaken`` if it belongs to another app."""
        graph, space = await self.graph(app_id), self.space(app_id)
        if graph.made:
            system = Database(graph.driver, graph.uri, "system", made=False)
            async with self.session(system, self._timing.admin_s) as session:
                await run_admin(session, f"CREATE DATABASE {quoted(graph.database or '')} IF NOT EXISTS WAIT")
        async with self.session(graph, self._timing.admin_s) as session:
            there = {name for [name] in await (await session.run(LIST_CONSTRAINTS)).values()}
            for name, statement in constraints(space).items():
                if name not in there:
                    await run_admin(session, statement)
            query = timed(space.statement(CLAIM), self._timeout_s)
            [[owner]] = await run(session, query, {"__gw_app": app_id})
            found = await (await session.run(OWNER)).values() if space.name else []
        for other in (owner, *(live for [live] in found)):
            self._check_owner(other, app_id, graph)
        return graph

    async def is_owned(self, app_id: str) -> bool:
        """Return whether the app has a graph. Raises ``PlaceTaken`` if it belongs to another app."""
        await self.owners.check(app_id)
        return app_id in self.owners

    async def _ask_owner(self, app_id: str) -> None:
        await self.owned_rows(app_id, OWNER, self._timing.admin_s)

    async def owned_rows(self, app_id: str, statement: str, limit_s: float) -> list[list[Any]]:
        """Return the rows of a statement whose last column is the owner of the app's graph; none without a graph.

        Raises ``PlaceTaken`` if it belongs to another app, and ``MarksLost`` if it does not say to which.
        """
        graph = await self.graph(app_id)
        with self.owners.asking(app_id):
            try:
                async with self.session(graph, limit_s, access=neo4j.READ_ACCESS) as session:
                    query = timed(self.space(app_id).statement(statement), limit_s)
                    rows = await (await session.run(query)).values()
            except GraphUnavailable as error:
                if not (graph.made and code_of(error.__cause__) == errors.NO_DATABASE):
                    raise
                rows = []
            if not rows:
                self.owners.forget(app_id)
            elif (owner := rows[0][-1]) is not None:
                self._check_owner(owner, app_id, graph)
            else:
                self.owners.forget(app_id)
                raise MarksLost(
                    f"{self._place(graph)} holds a graph that does not say that it is the one of {app_id!r}: somebody "
                    "has deleted the node `__App`, which is graphweft's own. Nothing is read from it until a worker "
                    "has put it back, with the app's next event or within two minutes"
                )
        return rows

    def _check_owner(self, owner: Any, app_id: str, graph: Database) -> None:
        """Raise ``PlaceTaken`` if the database belongs to another app; only the log names that app.

        The error appears in replies and dead letters of ``app_id``, which is another tenant.
        """
        place = self._place(graph)
        if not (other := self.owners.saw(app_id, [owner], place)):
            return
        if graph.own:
            raise OtherGraph.at(place, app_id, other)
        raise PlaceTaken(
            f"{place} holds the graph of another app, so app {app_id!r} cannot have it (the operator finds which one "
            "in the log and with `graphweft doctor`): give each app a server of its own "
            "(neo4j://{app_id}.example:7687 in GRAPHWEFT_GRAPH_URL), or use Neo4j Enterprise or FalkorDB"
        )

    @staticmethod
    def _place(graph: Database) -> str:
        return f"the database {graph.database!r}" if graph.database else "the only database of this Neo4j server"

    @contextlib.asynccontextmanager
    async def session(
        self, graph: Database, limit_s: float, *, access: str = neo4j.WRITE_ACCESS, ours: bool = True
    ) -> AsyncGenerator[AsyncSession]:
        """Open a session. With ``ours`` its statements are graphweft's; a refusal means an unavailable graph."""
        driver: Any = graph.driver
        session: AsyncSession = driver.session(database=graph.database, default_access_mode=access)
        with self._login(graph.uri).session():
            async with failing(limit_s + self._timing.grace_s, ours=ours), session:
                yield session
