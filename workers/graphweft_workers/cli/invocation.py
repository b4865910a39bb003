"""How a user starts this program again, and the Python that it runs with."""

from __future__ import annotations

import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = "graphweft"
_PYTHON: Final = "python"
_CACHES: Final = frozenset({"archive-v0", "pipx"})
"""Folders of programs that ``uvx`` and ``pipx run`` put on the PATH for one run only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """Both as they are typed in a folder: a name if the PATH leads there, else a path."""

    graphweft: str
    python: str

    @property
    def is_long(self) -> bool:
        """Tell whether the program is an absolute path, for which an alias is easier to read."""
        return Path(shlex.split(self.graphweft)[0]).is_absolute()


def invocation(program: str, python: str, *, here: Path, folder: Path) -> Invocation:
    """Return how ``program`` is typed in ``folder``, a path to it if it is in the working folder ``here``.

    ``program`` is the first argument of this process, and ``python`` runs it.
    """
    path = here / program
    if path.name != _NAME:  # python -m
        return Invocation(graphweft=_NAME, python=_PYTHON)
    if path.is_relative_to(here):
        near = Path(os.path.relpath(path, folder))
        return Invocation(graphweft=shlex.quote(str(near)), python=shlex.quote(str(near.with_name(_PYTHON))))
    for_one_run = not _CACHES.isdisjoint(path.parts) and path.parent.name == "bin"
    found = shutil.which(_NAME)
    if for_one_run or found is None or Path(found) != path:
        return Invocation(graphweft=shlex.quote(str(path)), python=shlex.quote(python))
    beside = shutil.which(_PYTHON)
    same = beside is not None and Path(beside).parent == path.parent and (path.parent / _PYTHON).exists()
    return Invocation(graphweft=_NAME, python=_PYTHON if same else shlex.quote(python))
