"""Calls of Neo4j's driver that translate its errors."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

import neo4j
from neo4j import AsyncSession, AsyncTransaction, Query
from neo4j.exceptions import DriverError, Neo4jError

from graphweft_contracts import GraphUnavailable, QueryFailed
from graphweft_workers.drivers.neo4j.errors import (
    DEADLOCK,
    THERE,
    code_of,
    translate,
)
from graphweft_workers.drivers.neo4j.statements import (
    timed,
)
from graphweft_workers.drivers.neo4j.timing import NEO4J_TIMING
from graphweft_workers.drivers.neo4j.values import count_values
from graphweft_workers.ports.result_limits import check_rows, check_values

_FETCHED: Final = 1_000
"""Rows of one fetch, which is also the driver's default."""
_RACES: Final = 20
"""Attempts after deadlocks of several processes on a new database; each takes milliseconds."""
_UNSENDABLE: Final = (OverflowError, ValueError, TypeError, RecursionError)
"""Errors of the driver for parameters that Bolt cannot encode; nothing was sent."""


@contextlib.asynccontextmanager
async def failing(limit_s: float, *, ours: bool) -> AsyncGenerator[None]:
    """Translate the driver's errors, and wait no longer than ``limit_s``: a frozen server never answers."""
    timeout = asyncio.timeout(limit_s)
    try:
        async with timeout:
            yield
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise GraphUnavailable(f"the graph server has not answered for {limit_s:.0f} s") from error
    except (Neo4jError, DriverError, OSError) as error:
        reason = translate(error)
        if ours and isinstance(reason, QueryFailed):
            raise GraphUnavailable(f"the graph server refuses: {reason}") from error
        raise reason from error


async def run_admin(session: AsyncSession, statement: str) -> None:
    """Run one of graphweft's own statements on the schema; a refusal means an unavailable graph."""
    try:
        await run(session, timed(statement, NEO4J_TIMING.admin_s), {})
    except Neo4jError as error:
        if code_of(error) in THERE:  # IF NOT EXISTS checks before it waits for a concurrent creation
            return
        reason = translate(error)
        if isinstance(reason, QueryFailed):
            raise GraphUnavailable(f"the graph server refuses {statement!r}: {reason}", retry_after_s=5.0) from error
        raise


async def run(session: AsyncSession, query: Query, params: dict[str, Any]) -> list[list[Any]]:
    """Run one of graphweft's own statements; other processes may run it too: see ``_RACES``."""
    for _ in range(_RACES - 1):
        try:
            return await (await session.run(query, params)).values()
        except Neo4jError as error:
            if code_of(error) != DEADLOCK:
                raise
        await asyncio.sleep(random.uniform(0.0, 0.1))
    return await (await session.run(query, params)).values()


async def send(runner: AsyncSession | AsyncTransaction, query: Any, params: Mapping[str, Any]) -> neo4j.AsyncResult:
    """Run a statement of a rule. Raises ``QueryFailed`` for parameters that Bolt cannot encode."""
    try:
        return await runner.run(query, dict(params))
    except OverflowError as error:
        raise QueryFailed("a parameter holds an integer beyond 64 bits; send it as a string", of_value=True) from error
    except _UNSENDABLE as error:  # UnicodeEncodeError (a lone surrogate) is a ValueError
        raise QueryFailed(f"a parameter cannot be sent to Neo4j: {type(error).__name__}", of_value=True) from error


async def rows_of(result: neo4j.AsyncResult) -> AsyncGenerator[list[Any]]:
    """Yield all rows; many at once, because waiting for each costs more than unpacking it."""
    while records := await result.fetch(_FETCHED):
        for record in records:
            yield record.values()


async def fetched(result: neo4j.AsyncResult, enough: int | None) -> list[list[Any]]:
    """Return the rows of a rule's query; stop fetching at the limits.

    Then return the first ``enough`` rows, or raise ``QueryFailed`` if there are no more than these.
    """
    rows: list[list[Any]] = []
    count = 0
    try:
        while records := await result.fetch(_FETCHED):
            for record in records:
                row = record.values()
                rows.append(row)
                check_rows(len(rows))
                count += sum(map(count_values, row))
                check_values(count)
    except QueryFailed:
        if enough is None or enough >= len(rows):
            raise
        return rows[:enough]
    return rows
