"""The driver of another package passes the suites of the ports, as its author runs them."""

from __future__ import annotations

import pytest
from tests.ports.toy import sqlite_url
from tests.ports.toy_kits import ToyRequestKit

from graphweft_workers.testing.suites.request_kit import RequestKit
from graphweft_workers.testing.suites.request_suite import RequestSuite

__all__ = ("sqlite_url",)  # a fixture

pytestmark = pytest.mark.integration


class TestRequests(RequestSuite):
    @pytest.fixture
    def kit(self, sqlite_url: str) -> RequestKit:
        return ToyRequestKit(sqlite_url)
