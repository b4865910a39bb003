"""Loggers of modules. They import structlog with their first entry, which most commands never write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

_waiting: Final[list[Callable[[], None]]] = []
"""What is called before the next entry."""
_setting_up: Final = threading.RLock()
"""Threads that log first at the same time find it called once, and done; what is called may log itself."""


class _LazyLogger:
    """Stands for structlog's logger of a name."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._logger is None or _waiting:
            import structlog

            with _setting_up:
                while _waiting:
                    _waiting.pop()()
            self._logger = structlog.get_logger(self._name)  # noqa: TID251 - the one place
        return getattr(self._logger, attribute)


def get_logger(name: str) -> Any:
    """Return the logger of a name, like ``structlog.get_logger``."""
    return _LazyLogger(name)


def before_next_entry(set_up: Callable[[], None] | None) -> None:
    """Have ``set_up`` called once, before the next entry of a logger of here; None: nothing is called."""
    _waiting[:] = [] if set_up is None else [set_up]
