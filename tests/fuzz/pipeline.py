"""A batch of entries through reading, planning and writing literals, as the worker of either graph server does it."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from neo4j._codec.packstream.v1 import PackableBuffer, Packer
from tests.fuzz.events import Case

from graphweft_contracts import Event, InvalidEvent, QueryFailed, wire
from graphweft_contracts.episodes import EPISODES
from graphweft_contracts.memory import MEMORY
from graphweft_contracts.wire import WHOLE
from graphweft_rules import RuleSet
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.drivers.falkordb.statements import guarded as falkordb_query
from graphweft_workers.drivers.neo4j.calls import _UNSENDABLE as NEO4J_REFUSES  # pyright: ignore[reportPrivateUsage]
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.engine.log.duplicates import RecentEvents, identity_of
from graphweft_workers.engine.log.read import LoggedEvent, Range, read_range
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.engine.plan.plan import Plan
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.dialect import GraphDialect
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Checkpoint
from graphweft_workers.rule_sets.active_rules import FixedRules

__all__ = ("check",)

_DIALECTS: Final[tuple[GraphDialect, ...]] = (FALKORDB, NEO4J)
_PACKED: Final = {*MEMORY, *EPISODES}
_PARTITION: Final = 3


@cache
def _rules() -> RuleSet:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Fuzz").mkdir()
        shutil.copy(Path(__file__).parent / "rules.yaml", Path(folder) / "Fuzz/graph_injection.yaml")
        return RuleSet.load(Path(folder), (MemoryMutations(), EpisodeMutations()))


@cache
def _arranger(dialect: GraphDialect) -> Arranger:
    return Arranger(_rules(), dialect)


def check(case: Case) -> Counter[str]:
    """Raise ``AssertionError`` unless each entry came to something; return how many came to what.

    Whatever else is raised is a defect: nothing that an event says may stop the worker, or reach another event.
    """
    found = read_range(_PARTITION, case.entries, FixedRules(_rules()), RecentEvents())
    outcomes = _accounted(case.entries, found)
    works = {work.entry.offset: work for each in found.apps.values() for work in each}
    for offset, names in case.sound.items():
        assert offset in works, f"the sound event at {offset} came to nothing"
        assert tuple(bound.mutation.id for bound in works[offset].mutations) == names
    for each in found.apps.values():
        for dialect in _DIALECTS:
            outcomes += _planned(each, dialect)
    return outcomes


def _accounted(entries: Sequence[Entry], found: Range) -> Counter[str]:
    """Say of each entry what it came to: nothing may vanish, and nothing be a letter because of us."""
    works = [work for each in found.apps.values() for work in each]
    worked = {work.entry.offset for work in works}
    assert len(works) == len(worked), "an event was matched twice"
    ours = [letter for letter in found.letters if letter.reason == "internal_error"]
    assert not ours, f"{ours[0].position}: {ours[0].message}\n{getattr(found, 'defects', '')}"
    told = {letter.position.partition(":")[2] for letter in found.letters}
    outcomes: Counter[str] = Counter()
    seen: set[tuple[str, ...]] = set()
    for entry in entries:
        event = None
        copy = False
        if entry.offset not in told or entry.offset in worked:
            event = wire.decode(entry.fields, received=entry.received)
            identity = identity_of(entry, event)
            copy = identity in seen
            seen.add(identity)
        else:
            _remember(entry, seen)
        if copy:
            assert entry.offset not in worked | told, f"{entry.offset} is a copy and took effect"
            outcomes["copy"] += 1
        elif entry.offset in worked:
            outcomes["work"] += 1
        elif event is None:
            outcomes["letter"] += 1
        else:
            assert _may_be_nothing(entry, event), f"{entry.offset} ({event.type}) has vanished"
            outcomes["nothing"] += 1
    assert outcomes["copy"] == found.copies
    assert outcomes.total() == len(entries)
    for each in found.apps.values():
        offsets = [work.entry.offset for work in each]
        assert offsets == sorted(offsets), "events are not in the order of the log"
    return outcomes


def _remember(entry: Entry, seen: set[tuple[str, ...]]) -> None:
    """Note the identity of an event that became a letter: what comes behind it may be its copy."""
    try:
        seen.add(identity_of(entry, wire.decode(entry.fields, received=entry.received)))
    except InvalidEvent:
        return  # it cannot be decoded, so it has none


def _may_be_nothing(entry: Entry, event: Event) -> bool:
    retried = wire.retry_of(entry.fields)
    if retried is not None and retried.mutation != WHOLE:
        return True
    return event.type not in _PACKED and not _rules().match_event(event).mutations


def _planned(works: Sequence[LoggedEvent], dialect: GraphDialect) -> Counter[str]:
    """Plan the events of an app, and write each query as it is sent."""
    plan = Plan.of(Checkpoint(offset="", plan="", done=0), works, _arranger(dialect))
    rows = Counter(
        (work.entry.offset, bound.mutation.rule, bound.mutation.id) for work in works for bound in work.mutations
    )
    assert Counter(row.name for row in plan.rows) == rows
    outcomes: Counter[str] = Counter()
    writes = [plan.opening(), *plan.writes(0, lambda _: 1_000)]
    assert sum(len(write.rows) for write in writes) == rows.total()
    for write in writes:
        try:
            if dialect is FALKORDB:
                falkordb_query(_PARTITION, [write]).encode()
            else:
                _packed([*map(dict[str, Any], write.rows), write.note])
        except QueryFailed:  # such a row becomes a dead letter
            outcomes[f"refused by {dialect.name}"] += 1
    return outcomes


def _packed(values: list[Any]) -> None:
    """Write values as the driver of Neo4j does; raises as the store does for what it cannot."""
    try:
        Packer(PackableBuffer()).pack(values)
    except NEO4J_REFUSES as error:
        raise QueryFailed(type(error).__name__) from None
