"""Settings of Python's garbage collector for commands, and for processes with events or requests by the thousand."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 50_000
"""How many new objects Python collects before it searches for cycles; the default, 700, is about ten events."""

_LOADING: Final = 250_000
"""The same while modules load, which are many objects that stay: with Python's default, the search takes an eighth of a
command's start. Most commands end before the first search, and a role, which loads 105,000 objects, has started."""


def collect_less_while_loading() -> None:
    """Search for cycles less often from now on. Call it before modules load."""
    gc.set_threshold(_LOADING)


def collect_nothing_at_the_end() -> None:
    """Never search for cycles among the objects that exist now. Call it when a process is about to end.

    Python would search all of them several times before it ends: a sixth of the CPU of a short command.
    """
    gc.freeze()


def collect_less_often() -> None:
    """Search for cycles less often, and never among the objects that exist now. Call it when the start is over.

    Events leave no cycles, but those in hand are many objects: with Python's defaults, a worker with a backlog spends
    half of its time on the search. A second call does nothing.
    """
    if gc.get_threshold()[0] != _YOUNG:
        gc.freeze()
        gc.set_threshold(_YOUNG, 20, 20)


def leave_out_the_start() -> None:
    """Exclude from the search what was created since ``collect_less_often``; does nothing before that call.

    What a service loads and compiles before its first event stays. The search among it takes 30 ms, and the event loop
    waits for that.
    """
    if gc.get_threshold()[0] == _YOUNG:
        gc.freeze()
