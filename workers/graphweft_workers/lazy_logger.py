"""Loggers of modules. They import structlog with their first entry: it takes a quarter of a command's start."""

from __future__ import annotations

from typing import Any


class _LazyLogger:
    """Stands for structlog's logger of a name."""

    __slots__ = ("_logger", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, attribute: str) -> Any:
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger(self._name)
        return getattr(self._logger, attribute)


def get_logger(name: str) -> Any:
    """Return the logger of a name, like ``structlog.get_logger``."""
    return _LazyLogger(name)
