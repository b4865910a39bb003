"""Leaves out what libraries import and the ``graphweft`` command never uses: a sixth of the start of a role."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final, override

_OPTIONAL: Final = {
    "rich": {"structlog.dev", "structlog.tracebacks"},  # draws exceptions, which we log as text
    "opentelemetry.sdk": {"redis.observability.providers"},  # metrics of redis, which are off
    "uvicorn": {"faststream._internal._compat"},  # serves AsgiFastStream
}
"""Packages, with the modules that do without if a package is not installed."""
_EMPTY: Final = {"cel.cli": {"cel"}}
"""Modules of which the importing one uses nothing: here a command line with ``prompt_toolkit``."""


def leave_out_unused_imports() -> None:
    """Have the modules named here import nothing of theirs that we do not use. Call it before they are imported.

    Only for a process of our own: in another one, somebody may use what is left out. All else imports the same packages
    as ever.
    """
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _OPTIONAL and _importing() in _OPTIONAL[fullname]:
            raise ModuleNotFoundError(f"{fullname!r} is left out here", name=fullname)
        if fullname in _EMPTY and _importing() in _EMPTY[fullname]:
            return ModuleSpec(fullname, _Empty())
        return None


class _Empty(Loader):
    @override
    def exec_module(self, module: ModuleType) -> None:
        """Leave the module empty."""


def _importing() -> str:
    """Return the name of the module whose statement is being executed."""
    frame = sys._getframe(2)  # of importlib, which does not say who imports
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))
