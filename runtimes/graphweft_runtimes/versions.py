"""Checks that a supported version of a runtime is installed."""

from __future__ import annotations

import importlib
import re
from importlib import metadata
from types import ModuleType

from graphweft_contracts import InvalidSettings


def require(
    module: str, *, extra: str, lowest: str, below: str, part: str | None = None, instead: str = ""
) -> ModuleType:
    """Import and return ``module``, a runtime whose ``__version__`` is at least ``lowest`` and below ``below``.

    Raises ``InvalidSettings``, naming what to install, if the module is missing, has another version, or lacks the
    submodule ``part``: then it is another package of the same name. An ``ImportError`` inside the runtime passes
    through.
    """
    install = f"pip install 'graphweft-runtimes[{extra}]'"
    try:
        found = importlib.import_module(module)
        version = str(getattr(found, "__version__", "") or _installed(module))
        if not _numbers(lowest) <= _numbers(version) < _numbers(below):
            raise InvalidSettings(
                f"unsupported {module} {version}: expected at least {lowest} and below {below}{instead}: {install}"
            )
        if part is not None:
            importlib.import_module(f"{module}.{part}")
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise InvalidSettings(f"{module} is not installed: {install}") from error
        if part is not None and error.name is not None and f"{module}.{part}".startswith(error.name):
            raise InvalidSettings(f"the installed {module} has no {error.name}: {install}") from error
        raise
    return found


def _installed(module: str) -> str:
    """Return the version of a distribution that is named like its module; "unknown" if there is none."""
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return "unknown"


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version. A pre-release counts as its release, an unknown one as the oldest."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()
