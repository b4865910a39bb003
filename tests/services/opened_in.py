"""Names the test in which a connection was opened, where Python says that nobody closed it.

That is said in whatever test runs when the search for cycles finds the connection, which may be an hour later.
"""

from __future__ import annotations

import os
from asyncio import selector_events
from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ()


@pytest.fixture(scope="session", autouse=True)
def _opened_in() -> Iterator[None]:
    transport: Any = vars(selector_events)["_SelectorTransport"]
    make, show = transport.__init__, transport.__repr__

    def noting(self: Any, *arguments: Any, **options: Any) -> None:
        self.opened_in = os.environ.get("PYTEST_CURRENT_TEST", "no test")
        make(self, *arguments, **options)

    def naming(self: Any) -> str:
        return f"{show(self)}, opened in {getattr(self, 'opened_in', 'no test')}"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "__init__", noting)
        patch.setattr(transport, "__repr__", naming)
        yield
