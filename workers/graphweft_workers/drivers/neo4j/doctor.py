"""The doctor's checks of Neo4j."""

from __future__ import annotations

from typing import Any, Final

from neo4j import AsyncGraphDatabase, AsyncSession, NotificationMinimumSeverity
from neo4j.exceptions import DriverError, Neo4jError

from graphweft_contracts import GraphweftError
from graphweft_workers.drivers.neo4j.errors import translate
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.neo4j.url import APP, split_neo4j_url, tls_options
from graphweft_workers.ports.check import Check

_CONNECT_S: Final = 5.0


async def examine(url: str) -> list[Check]:
    """See ``GraphDriver.examine``; where each app has a server of its own, none is asked."""
    store = Neo4jStore(url)
    try:
        await store.check()
    except GraphweftError as error:
        advice = "check GRAPHWEFT_GRAPH_URL, or NEO4J_URI and the others, and that the server runs"
        return [Check(name="graph", state="fail", found=" ".join(str(error).split()), advice=advice)]
    finally:
        await store.aclose()
    where = split_neo4j_url(url)
    if not where.one_server:
        return [Check(name="graph", state="ok", found="Neo4j, a server for each app: none is asked here")]
    library: Any = AsyncGraphDatabase
    database = where.database if where.database and APP not in where.database else None
    address, options = tls_options(where, where.uri)
    login = (where.user, where.password) if where.user else None
    try:
        async with (
            library.driver(
                address,
                **options,
                auth=login,
                connection_timeout=_CONNECT_S,
                # A new database knows no label of ours, and the driver would warn of that.
                notifications_min_severity=NotificationMinimumSeverity.OFF,
                telemetry_disabled=True,
            ) as driver,
            driver.session(database=database, default_access_mode="READ") as session,
        ):
            return await _look(session, database, per_app=APP in where.database)
    except (Neo4jError, DriverError, OSError) as error:
        advice = "nothing, if its operator knows: the login may not ask for the version"
        return [Check(name="graph", state="warn", found=f"Neo4j answers, but: {translate(error)}", advice=advice)]


async def _look(session: AsyncSession, database: str | None, *, per_app: bool) -> list[Check]:
    result = await session.run("CALL dbms.components() YIELD versions, edition RETURN versions[0], edition")
    [[version, edition], *_] = await result.values()
    checks = [Check(name="graph", state="ok", found=f"Neo4j {version} {edition} answers")]
    if per_app or (edition != "community" and database is None):
        return [*checks, Check(name="graph apps", state="ok", found="each app has a database of its own")]
    owners = await (await session.run("MATCH (a:__App) RETURN a.app_id")).values()
    taken = f"of the app {owners[0][0]!r}" if owners else "which no app has yet"
    place = f"the database {database!r}" if database else "the only database of this edition"
    return [*checks, Check(name="graph apps", state="ok", found=f"{place}, {taken}: it holds one app and no other")]
