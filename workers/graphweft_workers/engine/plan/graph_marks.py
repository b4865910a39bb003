"""Marks that a checkpoint holds in place of a plan's name while one graph replaces another.

A seal stops the writes of workers, whose checkpoint no longer equals that of the graph, until another graph has taken
the place of this one. A generation mark names the graph that came: workers and responders that know the graph before
it find another checkpoint, so they open the graph again and drop what they remember. A graph that is
loaded from a snapshot has a mark until it is whole.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Final
from uuid import uuid4

from graphweft_workers.ports.graph_store import PARTIAL, Checkpoint

_SEALED: Final = "sealed:"
_RENEWED: Final = "#"
_GENERATION: Final = "generation:"


def sealed(checkpoint: Checkpoint, name: str, renewal: int = 0) -> Checkpoint:
    """Return a checkpoint without a plan, sealed by the rebuild ``name``; each renewal says that it is alive."""
    return replace(checkpoint, plan=f"{_SEALED}{name}" + (f"{_RENEWED}{renewal}" if renewal else ""))


def have_same_seal(one: Checkpoint, other: Checkpoint) -> bool:
    """Tell whether two checkpoints are sealed by one rebuild."""
    return is_sealed(one) and one.plan.partition(_RENEWED)[0] == other.plan.partition(_RENEWED)[0]


def of_generation(checkpoint: Checkpoint, name: str | None = None) -> Checkpoint:
    """Return a checkpoint without a plan with a generation mark, by default a random one."""
    return replace(checkpoint, plan=f"{_GENERATION}{name or uuid4().hex}")


def loading() -> Checkpoint:
    """Return the checkpoint of a graph that one load fills from a snapshot: until the end, it holds a part.

    No two loads have the same one, so that neither goes on in a graph that the other has begun.
    """
    return replace(PARTIAL, done=secrets.randbits(48))


def is_loading(checkpoint: Checkpoint) -> bool:
    """Tell whether the load of a snapshot, or a deletion, has not ended."""
    return checkpoint.plan == PARTIAL.plan


def is_sealed(checkpoint: Checkpoint) -> bool:
    """Tell whether workers must wait until another graph has taken the place of this one."""
    return checkpoint.plan.startswith(_SEALED)


def has_plan(checkpoint: Checkpoint) -> bool:
    """Tell whether the graph holds an unfinished plan; a mark is not a plan."""
    return bool(checkpoint.plan) and not checkpoint.plan.startswith((_SEALED, _GENERATION))
