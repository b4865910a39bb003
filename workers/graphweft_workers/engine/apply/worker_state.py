"""What all partitions of a worker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.engine.apply.app_indexes import AppIndexes
from graphweft_workers.engine.apply.apply import Applier
from graphweft_workers.engine.apply.older_graph import Obstacle, no_obstacle
from graphweft_workers.engine.apply.seals import Seals
from graphweft_workers.engine.apply.strikes import Strikes
from graphweft_workers.engine.log.app_costs import AppCosts
from graphweft_workers.engine.plan.arrangers import Arrangers
from graphweft_workers.engine.usage.effects import EffectReporter
from graphweft_workers.engine.usage.memory_quota import MemoryQuota
from graphweft_workers.engine.usage.name_quota import NameQuota
from graphweft_workers.ports.dead_letters import DeadLetters
from graphweft_workers.ports.event_log import EventLog
from graphweft_workers.ports.graph_store import PartitionGraph
from graphweft_workers.ports.partitions import Partitions
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.support.timing import TIMING, Timing


@dataclass(slots=True, kw_only=True)
class WorkerState:
    """Servers, rules, and what is remembered of apps as long as the process lasts."""

    log: EventLog
    partitions: Partitions
    letters: DeadLetters
    graph: PartitionGraph
    rules: ActiveRules
    batch_events: int
    index_keys: frozenset[tuple[str, str]]
    """(label, property) of the indexes that every app's graph gets, beside those of its rules."""
    effects: EffectReporter | None = None
    """Says what took effect; None while the settings ask for no effects stream, and in a replay."""
    purges: RecordLog | None = None
    """Where an erasure is announced to responders; None for a replay, whose graph no responder reads."""
    names: NameQuota | None = None
    """The quota of names of properties; None without one."""
    memory: MemoryQuota | None = None
    """The quota of the memory of a graph; None without one."""
    quarantine: bool = True
    """Whether mutations that fail again and again are left out for a while."""
    clock: Clock = SYSTEM_CLOCK
    timing: Timing = TIMING
    obstacle: Obstacle = no_obstacle
    """Of a graph in which events are to take effect again."""
    older: Obstacle = no_obstacle
    """Of each graph that is opened: it may be from before an erasure, and stand where it stood then."""
    costs: AppCosts = field(init=False)
    arrangers: Arrangers = field(init=False)
    applier: Applier = field(init=False)
    indexes: AppIndexes = field(init=False)
    strikes: Strikes = field(init=False)
    seals: Seals = field(init=False)

    def __post_init__(self) -> None:
        self.arrangers = Arrangers(self.rules, self.graph.dialect)
        self.applier = Applier(
            self.log, self.letters, self.graph, self.arrangers, quarantine=self.quarantine, names=self.names,
            memory=self.memory, clock=self.clock, timing=self.timing,
        )  # fmt: skip
        self.costs = AppCosts(self.clock, self.timing.costs)
        self.indexes = AppIndexes(self.graph, self.index_keys)
        self.strikes = Strikes()
        self.seals = Seals(self.graph, self.clock, self.timing)
