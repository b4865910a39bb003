"""Whether the runtime of an adapter is there, and one that it knows."""

from __future__ import annotations

import importlib
import re
from types import ModuleType

from graphweft_contracts import InvalidSettings

__all__ = ("require",)


def require(
    module: str, *, extra: str, lowest: str, below: str, part: str | None = None, instead: str = ""
) -> ModuleType:
    """Import and return ``module``, a runtime whose ``__version__`` is at least ``lowest`` and before ``below``.

    Raises ``InvalidSettings`` with what to install: when it is missing, another version, or (``part`` of it, a
    submodule, is missing) another package of the same name. An ``ImportError`` inside the runtime passes through.
    """
    install = f"pip install 'graphweft[{extra}]'"
    try:
        found = importlib.import_module(module)
        version = str(getattr(found, "__version__", "unknown"))
        if not _numbers(lowest) <= _numbers(version) < _numbers(below):
            raise InvalidSettings(
                f"this adapter knows {module} {lowest} and later, before {below}, and {version} is installed{instead}: "
                f"{install}"
            )
        if part is not None:
            importlib.import_module(f"{module}.{part}")
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise InvalidSettings(f"{module} is not installed: {install}") from error
        if part is not None and error.name is not None and f"{module}.{part}".startswith(error.name):
            raise InvalidSettings(f"the {module} that is installed has no {error.name}: {install}") from error
        raise
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; a pre-release counts as its release, none as older than all."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()
