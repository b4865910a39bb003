"""How long workers and responders wait, and how often they look: one value that is passed in.

What an operator sets is in the settings; what only one driver waits for is in the driver's folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTiming:
    """The queues of the apps of a partition."""

    batch_s: float = 0.1
    """How long a partition waits for the first app of a batch to be done."""
    pace_s: float = 0.005
    """How long it waits if all events of a batch are of busy apps: what arrives meanwhile is read at once."""
    park_s: float = 1.0
    """An app with a full queue is parked after it has been busy with the same events for this long."""
    cool_down_s: float = 30.0
    """The others do not wait for an app for this long after it took more than ``park_s`` or failed."""
    lost_rules_s: float = 2.0
    """How often an app looks for a lost rule set."""
    drain_s: float = 10.0
    """At the end of a lease, how long apps that are not slow may go on; the next owner continues with the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Leases of partitions."""

    read_s: float = 5.0
    """Longest wait for new events. It also ends at each tick, when the lease is extended."""
    look_s: float = 5.0
    """How often to ask the bus for added partitions."""
    blocked_s: float = 60.0
    """How long the leases of a worker are extended whose event loop is blocked."""
    join_s: float = 5.0
    """How long the end of the thread that extends them is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesTiming:
    """The rule sets that the log activates."""

    visible_s: float = 5.0
    """How long an announced activation may be missing: a bus may show a transaction in one place before another."""
    step_s: float = 0.05
    """How often it is looked for meanwhile."""
    lost_s: float = 1.0
    """How often lost rule sets are looked for."""
    warn_s: float = 60.0
    """At most one warning about imitated activations in this time."""
    rescan_s: float = 0.1
    """How long parked events wait after new rules: all partitions pass an activation at about the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineTiming:
    """Mutations that fail again and again."""

    first_probe_s: float = 10.0
    """When a mutation is tried again; the wait doubles with each further failure."""
    last_probe_s: float = 600.0
    """The longest wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """Jobs that read the log and emit events."""

    grace_s: float = 5.0
    """How long the batch in hand may still take when the worker stops or loses the lease."""
    last_wait_s: float = 60.0
    """The longest wait for a server that a job needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTiming:
    """Commands that replay the log."""

    query_s: float = 60.0
    """Limit of a query: whole graphs are read, and nobody waits for an answer in a chat."""
    rest_s: float = 0.5
    """How long a comparison, a swap and a restatement wait before they look again whether workers have got on."""
    export_rest_s: float = 0.2
    """The same for an export."""
    applied_step_s: float = 0.1
    """The same for an erasure."""
    workers_s: float = 60.0
    """How long a swap waits until the live graph is as far as the new one, and a restatement until workers read it."""
    plan_s: float = 10.0
    """How long a swap waits until the live graph holds no unfinished plan."""
    plan_step_s: float = 0.005
    """How often it looks: between two plans there is a moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All of them, by area."""

    queues: QueueTiming = QueueTiming()
    leases: LeaseTiming = LeaseTiming()
    rules: RulesTiming = RulesTiming()
    quarantine: QuarantineTiming = QuarantineTiming()
    jobs: JobTiming = JobTiming()
    replay: ReplayTiming = ReplayTiming()
    defect_s: float = 5.0
    """When a partition is opened again after an unexpected error."""
    checkpoints_s: float = 5.0
    """Limit of the query for the checkpoints of an app's graph."""
    seal_s: float = 60.0
    """A rebuild whose seal is older was killed: it takes some milliseconds from the seal to the swap."""
    turn_s: float = 0.005
    """A loop over events lets others run after this time. Shorter turns are joined: a change takes 10 us."""
    usage_s: float = 5.0
    """How often a worker reports what apps use."""


TIMING: Final = Timing()
"""What runs in production, and the default wherever a ``Timing`` may be passed in."""
