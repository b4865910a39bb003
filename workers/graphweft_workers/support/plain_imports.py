"""Loads libraries without what they import and no command uses.

Several libraries look for others when they are imported: structlog for rich, to draw tracebacks; FastStream for
uvicorn, to serve HTTP; a driver's library for OpenTelemetry, to count for itself. CEL imports its own command line,
with rich and prompt_toolkit. All that was a fifth of the start of a role.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Final, override

from graphweft.transports import UNUSED_IMPORTS

_UNUSED: Final = {
    "structlog.dev": "rich",
    "structlog.tracebacks": "rich",
    "faststream._internal._compat": "uvicorn",
    **UNUSED_IMPORTS,
}
"""Module -> the package that it does not find. Each works without it."""
_EMPTY: Final = frozenset({"cel.cli"})
"""Modules that are imported unconditionally, and left empty."""


class _Unused(threading.local):
    """What the module that this thread loads does not find: other threads find it."""

    package = ""


class _EmptyLoader(Loader):
    @override
    def exec_module(self, module: ModuleType) -> None:
        pass


class _PlainFinder(MetaPathFinder):
    def __init__(self) -> None:
        self._unused = _Unused()

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = self._unused.package
        if package and fullname.partition(".")[0] == package:
            raise ModuleNotFoundError(f"{fullname!r} is left out by {__name__}", name=fullname)
        if fullname in _EMPTY:
            return ModuleSpec(fullname, _EmptyLoader())
        if fullname not in _UNUSED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self._without(_UNUSED[fullname], loader.exec_module)
        return spec

    def _without(self, package: str, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def executed(module: ModuleType) -> None:
            before, self._unused.package = self._unused.package, package
            try:
                execute(module)
            finally:
                self._unused.package = before

        return executed


def load_plainly() -> None:
    """Load these libraries so from now on. Call it before anything imports them; a second call does nothing."""
    if not any(isinstance(each, _PlainFinder) for each in sys.meta_path):
        sys.meta_path.insert(0, _PlainFinder())
