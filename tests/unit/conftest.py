"""Unit tests run in virtual time: see ``tests.services.virtual_time``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from tests.services.virtual_time import VIRTUAL, VirtualClock, VirtualLoop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], VirtualLoop]]:
    """Let all tests of this folder run in a virtual loop."""
    return {"virtual": VirtualLoop}


@pytest.fixture(autouse=True)
def clock() -> VirtualClock:
    """The clock of the loop, which a test may set forward; it begins anew with each test."""
    VIRTUAL.elapsed_s = 1_000.0
    return VIRTUAL
