"""Whether an event has taken effect: the graph's checkpoint, the position on the bus, and dead letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from graphweft_contracts import DeadLetter, GraphUnavailable, QueryFailed
from graphweft_workers.engine.failures.set_aside import set_aside_id
from graphweft_workers.engine.plan.plan import planned_end, planned_rows
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_count, letter_with
from graphweft_workers.ports.graph_store import Checkpoint, GraphStore, Progress
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.reports.entries import DecodedEntry
from graphweft_workers.reports.lookup import rows_of
from graphweft_workers.support.timing import TIMING

type State = Literal["applied", "in_plan", "waiting", "passed", "unknown"]
"""- ``applied``: the checkpoint in the app's graph is at or after the event.
- ``in_plan``: the graph holds an unfinished batch with the event.
- ``waiting``: no worker has applied it.
- ``passed``: workers have passed it, and the checkpoint is before it: it wrote nothing.
- ``unknown``: the graph does not answer, and the position on the bus is before the event.
"""
_MOST_LETTERS: Final = 10_000
_LETTERS_SIZE: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEffect:
    """How far workers are with an entry."""

    state: State
    position: str
    """The committed offset of the partition."""
    checkpoint: str | None
    """The checkpoint of the partition in the app's graph; None if it is not known."""
    planned: Sequence[tuple[str, str, bool]] = ()
    """Rule and mutation of the entry's rows in the unfinished batch, and whether the graph has them."""
    plan_end: str | None = None
    parked: ParkedApp | None = None
    """Why the app is behind."""
    graph_fault: str = ""
    """Why the checkpoint is not known."""


async def effect_of(bus: Bus, graph: GraphStore | None, seen: DecodedEntry) -> EntryEffect:
    """Return how far workers are with an entry; without ``graph``, what the bus knows. Nothing is written."""
    return (await effects_of(bus, graph, [seen]))[0]


async def effects_of(bus: Bus, graph: GraphStore | None, entries: Sequence[DecodedEntry]) -> list[EntryEffect]:
    """Return how far workers are with each entry. The bus is asked once, and the graph once for each app."""
    status = {each.id: each for each in await bus.partitions.status()}
    looks: dict[str, _Look] = {}
    found: list[EntryEffect] = []
    for seen in entries:
        look: _Look | None = None
        if graph is not None and seen.app_id is not None:
            look = looks.get(seen.app_id) or looks.setdefault(seen.app_id, await _Look.at(graph, seen.app_id))
            await look.read_plan(graph, seen.partition)
        found.append(_effect(status.get(seen.partition), look, seen))
    return found


@dataclass(slots=True, kw_only=True)
class _Look:
    """What one graph says about its progress."""

    app_id: str
    checkpoints: Mapping[int, Checkpoint] | None = None
    plans: dict[int, Progress] = field(default_factory=dict[int, Progress])
    """By partition: the unfinished batch."""
    fault: str = ""

    @classmethod
    async def at(cls, graph: GraphStore, app_id: str) -> _Look:
        look = cls(app_id=app_id)
        try:
            look.checkpoints = await graph.checkpoints(app_id, timeout_s=TIMING.checkpoints_s)
        except (GraphUnavailable, QueryFailed) as error:
            look.fault = str(error)
        return look

    async def read_plan(self, graph: GraphStore, partition: int) -> None:
        if not self.checkpoints or partition in self.plans or not self.checkpoints.get(partition, Checkpoint()).plan:
            return
        try:  # the graph and the checkpoint exist, so this creates nothing
            self.plans[partition] = await graph.progress(self.app_id, partition)
        except (GraphUnavailable, QueryFailed) as error:
            self.fault = str(error)


def _effect(status: PartitionStatus | None, look: _Look | None, seen: DecodedEntry) -> EntryEffect:
    checkpoint: Checkpoint | None = None
    planned: list[tuple[str, str, bool]] = []
    plan_end, app_id = None, seen.app_id
    if look is not None and look.checkpoints is not None:
        checkpoint = look.checkpoints.get(seen.partition, Checkpoint())
        progress = look.plans.get(seen.partition)
        if progress is not None:
            checkpoint, plan_end = progress.checkpoint, planned_end(progress)
            planned = [row[1:] for row in planned_rows(progress) if row[0] == seen.entry.offset]
    note = PositionNote.decode(status.note if status else "")
    done = "" if status is None else note.applied(status.position, [app_id] if app_id else [])
    state = _state(seen.entry.offset, done, checkpoint, planned)
    return EntryEffect(
        state="waiting" if state == "unknown" and app_id is None else state,
        position=status.position if status else "",
        checkpoint=None if checkpoint is None else checkpoint.offset,
        planned=planned,
        plan_end=plan_end,
        parked=note.parked.get(app_id or ""),
        graph_fault="" if look is None else look.fault,
    )


def _state(
    offset: str,
    done: str,
    checkpoint: Checkpoint | None,
    planned: Sequence[object],
) -> State:
    if checkpoint is not None and not is_after(offset, checkpoint.offset):
        return "applied"
    if planned:
        return "in_plan"
    if not is_after(offset, done):
        return "passed"
    return "waiting" if checkpoint is not None else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters:
    """The dead letters that stand for an entry."""

    found: Sequence[DeadLetter]
    complete: bool
    """Whether all dead letters that stand for many entries were read."""

    @property
    def set_aside(self) -> DeadLetter | None:
        """The dead letter that tells workers to pass over the entry."""
        return next((each for each in self.found if each.id == set_aside_id(each.partition)), None)


async def letters_of(bus: Bus, seen: DecodedEntry, names: Collection[tuple[str, str]]) -> Letters:
    """Return the dead letters of an entry: of mutations by ``names``, and those that stand for many entries."""
    count = await letter_count(bus.dead_letters)
    if not count:
        return Letters(found=(), complete=True)
    found: dict[str, DeadLetter] = {}
    for name in (*rows_of(seen, names), set_aside_id(seen.partition)):
        letter = await letter_with(bus.dead_letters, name)
        if letter is not None and covers(letter, seen):
            found[letter.id] = letter
    read = await bus.dead_letters.read(limit=_MOST_LETTERS, app_id=seen.app_id, size=_LETTERS_SIZE)
    for letter in read:
        if covers(letter, seen):
            found[letter.id] = letter
    if seen.app_id is not None:
        count = await letter_count(bus.dead_letters, seen.app_id)
    return Letters(found=tuple(found.values()), complete=len(read) >= count)


def covers(letter: DeadLetter, seen: DecodedEntry) -> bool:
    """Tell whether a dead letter stands for an entry."""
    if letter.reason == "trimmed" or letter.partition != seen.partition:
        return False
    return seen.entry.offset in letter.entries
