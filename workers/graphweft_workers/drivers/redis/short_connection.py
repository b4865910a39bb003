"""A connection to the bus for one question, or one change."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from graphweft.transports.redis.connection import connect
from graphweft.transports.redis.refusals import bus_errors


@contextlib.asynccontextmanager
async def short_connection(url: str, *, io_timeout_s: float, decode: bool = False) -> AsyncGenerator[Any]:
    """Yield a client, and close it at the end. Raises ``BusUnavailable`` in place of the errors of the server."""
    with bus_errors():
        async with contextlib.aclosing(connect(url, io_timeout_s=io_timeout_s, decode=decode)) as client:
            yield client
