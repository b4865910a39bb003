"""What the rounds of faults share: servers, which one process starts once."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from .servers import Servers


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def servers() -> AsyncIterator[Servers]:
    """Servers with proxies, which run in the event loop of the whole session."""
    with tempfile.TemporaryDirectory(prefix="graphweft-chaos-") as folder:
        running = Servers(Path(folder))
        try:
            yield running
        finally:
            await running.stop()
