"""Settings of Python's garbage collector for commands, and for processes with events or requests by the thousand."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 50_000
"""New objects until Python searches them for cycles; 700 by default, which are about ten events."""

_LOADING: Final = 20_000
"""The same while modules load, which are many objects that stay: the search takes an eighth of a command's start."""


def collect_less_while_loading() -> None:
    """Search for cycles less often from now on. Call it before modules load."""
    gc.set_threshold(_LOADING)


def collect_less_often() -> None:
    """Search for cycles less often, and never among the objects that exist now. Call it when the start is over.

    Events leave no cycles, but those in hand are many objects: with Python's defaults, a worker with a backlog spends
    half of its time on the search. A second call does nothing.
    """
    if gc.get_threshold()[0] != _YOUNG:
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, 20, 20)
