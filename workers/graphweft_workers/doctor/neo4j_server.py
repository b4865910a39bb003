"""What the doctor looks at on Neo4j, of a server that is known to answer."""

from __future__ import annotations

from typing import Any, Final

from neo4j import AsyncGraphDatabase, AsyncSession, NotificationMinimumSeverity
from neo4j.exceptions import DriverError, Neo4jError

from graphweft_workers.doctor.check import Check
from graphweft_workers.graph.neo4j_errors import translate
from graphweft_workers.graph.neo4j_url import APP, split_neo4j_url

_CONNECT_S: Final = 5.0


async def examine(url: str) -> list[Check]:
    """Return the checks of a server; of one server per app there is none to ask."""
    where = split_neo4j_url(url)
    if not where.one_server:
        return [Check(name="graph", state="ok", found="Neo4j, a server for each app: none is asked here")]
    library: Any = AsyncGraphDatabase
    database = where.database if where.database and APP not in where.database else None
    login = (where.user, where.password) if where.user else None
    try:
        async with (
            library.driver(
                where.uri,
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
