"""Runs of one chat that overlap are one run of its workflow: from the first start to the last end."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from graphweft.adapters.core import Adapter


class ChatRuns:
    """Counts the open runs of each chat, and emits the start and the end of the workflow. Thread-safe.

    ``key`` is the chat's, from ``RuntimeAdapter.chat_key``. The run that ends last decides how the workflow ends.
    """

    def __init__(self, core: Adapter) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], int] = {}

    def enter(self, key: tuple[str, str], variables: Mapping[str, Any]) -> None:
        """Start a run."""
        with self._lock:
            self._open[key] = self._open.get(key, 0) + 1
            if self._open[key] == 1:
                self._core.start_run(variables)

    def leave(
        self,
        key: tuple[str, str],
        variables: Mapping[str, Any],
        *,
        outputs: Any = None,
        failure: BaseException | None = None,
        paused: bool = False,
    ) -> None:
        """End a run. ``paused``: it waits for a person, so the workflow goes on with the next run of the chat."""
        with self._lock:
            self._open[key] -= 1
            if self._open[key]:
                return
            del self._open[key]
            if failure is not None:
                self._core.fail_run(variables, failure)
            elif not paused:
                self._core.end_run(variables, outputs=outputs)

    def __len__(self) -> int:
        """Return the number of chats with open runs."""
        return len(self._open)
