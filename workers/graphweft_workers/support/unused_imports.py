"""Leaves out what libraries import and the ``graphweft`` command never uses: a sixth of the start of a role."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_OPTIONAL: Final = {
    "rich": {"structlog.dev", "structlog.tracebacks"},  # draws exceptions, which we log as text
    "opentelemetry.sdk": {"redis.observability.providers"},  # metrics of redis, which are off
    "uvicorn": {"faststream._internal._compat"},  # serves AsgiFastStream
}
"""Packages, with the modules that do without if a package is not installed."""
_EMPTY: Final = ("cel.cli",)  # a command line with prompt_toolkit, which the package imports
"""Modules that nobody uses; the import machinery finds an empty one."""


def leave_out_unused_imports() -> None:
    """Have the modules named here import nothing of theirs that we do not use. Call it before they are imported.

    Only for a process of our own: in another one, somebody may use what is left out. All else imports the same packages
    as ever.
    """
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in _EMPTY:
        sys.modules.setdefault(name, ModuleType(name))


class _Finder:
    """A finder of modules; importing its base class from ``importlib.abc`` would take 5 ms."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """Raise ``ModuleNotFoundError`` if the module that imports a package can do without it."""
        if fullname in _OPTIONAL and _importing() in _OPTIONAL[fullname]:
            raise ModuleNotFoundError(f"{fullname!r} is left out here", name=fullname)
        return None


def _importing() -> str:
    """Return the name of the module whose statement is being executed."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] # importlib does not say who imports
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__"))
