"""What all tests share: real servers, each started by the first test that needs it."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import groupby

import pytest

pytest_plugins = [
    "tests.services.fixtures",
    "tests.services.model_environment",
    "tests.services.models",
    "tests.services.runtime_environments",
]


@pytest.hookimpl(trylast=True)  # behind the plugin that shuffles
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first, in both halves: two processes take a half each, and none is left with a long one."""

    def file(item: pytest.Item) -> Hashable:
        return item.path

    long = [[*tests] for _, tests in groupby((item for item in items if item.get_closest_marker("slow")), key=file)]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    one = [item for tests in long[::2] for item in tests]
    other = [item for tests in long[1::2] for item in tests]
    middle = max(0, len(items) // 2 - len(one))
    items[:] = [*one, *quick[:middle], *other, *quick[middle:]]
