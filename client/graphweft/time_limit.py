"""``asyncio.timeout``, also for Python 3.10."""

from __future__ import annotations

import asyncio
import sys

if sys.version_info >= (3, 11):
    time_limit = asyncio.timeout
else:
    from collections.abc import AsyncGenerator
    from contextlib import asynccontextmanager

    import async_timeout

    @asynccontextmanager
    async def time_limit(delay: float | None) -> AsyncGenerator[None]:
        """Raise ``TimeoutError`` if the block takes longer than ``delay`` seconds."""
        try:
            async with async_timeout.timeout(delay):
                yield
        except asyncio.TimeoutError as error:
            raise TimeoutError from error
