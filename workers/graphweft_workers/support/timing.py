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
class EffectTiming:
    """The effects stream."""

    write_s: float = 1.0
    """Limit of one write: a commit waits for it."""
    again_s: float = 5.0
    """After a write that failed, the next one waits for this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Leases of partitions."""

    read_s: float = 2.5
    """Longest wait for new events while something else may be to do: what fails meanwhile is noticed then."""
    quiet_s: float = 30.0
    """The same while nothing else is: what a bus has lost meanwhile is noticed then, or at the next event."""
    look_s: float = 5.0
    """How often to ask the bus for added partitions."""
    blocked_s: float = 60.0
    """How long the leases of a worker with a blocked event loop are still extended."""
    join_s: float = 5.0
    """How long to wait for the end of the thread that extends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesTiming:
    """The rule sets that the log activates."""

    visible_s: float = 5.0
    """How long an announced activation may be missing: a bus may show a transaction in one place before another."""
    step_s: float = 0.05
    """How often it is looked for meanwhile."""
    announced_s: float = 0.1
    """How often tools look for it."""
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
class WriteTiming:
    """Writes that keep a graph server from other work, and writes that run into their time limit."""

    query_s: float = 0.1
    """What a query with many rows should take: the next ones have as many rows as fit."""
    least_s: float = 0.1
    """Shorter writes of one row are not counted."""
    long_s: float = 0.25
    """A context request with a usual budget does not survive a write of this length."""
    rest: float = 1.0
    """How many times as long as such a write an app rests."""
    long_rest: float = 20.0
    """The same after a long one, so that others have 95 % of the time."""
    again_s: float = 5.0
    """The least rest after a write ran into its limit."""
    short_rest_s: float = 1.0
    """A rest up to this is waited for on the spot; for a longer one the app is parked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTiming:
    """Events that take much of the worker's own time."""

    least_s: float = 0.001
    """An event that is matched in less is not counted."""
    burst_s: float = 0.05
    """What the events of an app may take in the batches that it shares with other apps."""
    share: float = 0.05
    """The share of the time passed by which what an app has taken shrinks."""
    most_s: float = 1.0
    """What an app owes at most, so that all is forgotten soon after its last dear event."""
    step_s: float = 0.5e-6
    """What a step of a condition takes, before more is known of an app's events."""
    fading: float = 0.95
    """The factor by which a long time of steps shrinks with each further event that takes less."""
    page_s: float = 0.25
    """A page of a parked app ends with the event that uses up this time."""
    rest: float = 1.0
    """How many times as long as a page has taken parked apps rest, one after the other."""
    most_rest_s: float = 5.0
    """The longest of these rests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaTiming:
    """Quotas that workers hold."""

    measure_s: float = 1.0
    """How long a graph counts as measured: it takes a server a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTiming:
    """Jobs that read the log and emit events."""

    grace_s: float = 5.0
    """How long the batch in hand may still take when the worker stops or loses the lease."""
    last_wait_s: float = 60.0
    """The longest wait for a server that a job needs."""
    shown_s: float = 1.0
    """A wait that lasts at least this long is warned of, and kept on the bus for ``status``."""
    renew_s: float = 10.0
    """How often the record of a wait is renewed, at most."""
    record_s: float = 1.0
    """Limit of the write of such a record."""
    trial_look_s: float = 1.0
    """How long other apps wait for a try of one that waits. Then it goes on beside them, and is looked at so often."""
    refused_s: float = 5.0
    """The first wait for a partition that takes no events until it is mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTiming:
    """Responders, which answer context requests before their deadlines."""

    reserve: float = 0.1
    least_reserve_s: float = 0.005
    most_reserve_s: float = 0.05
    """The share of a budget, within bounds, that is left for packing and the way to the client. A hop takes 1 to 5 ms,
    and up to 20 ms under load; a late reply loses every block."""
    purges_s: float = 0.005
    """How long a reply waits for the purges at its end. If it is late, it is no worse than one without rows."""
    version_s: float = 1.0
    """Limit of the query for the version of a graph, which usually takes a millisecond."""
    version_turn_s: float = 0.05
    """How long the next such query waits for the one at the graph. With ``version_s`` this bounds the queries at a
    graph that does not answer: 20 for an app."""
    version_recent_s: float = 0.1
    """How long a version counts as recent."""
    age_recent_s: float = 1.0
    """How often a graph is asked whether it is older than an erasure, at most."""
    age_s: float = 5.0
    """How long requests rely on its answer while it is asked again. Beside responders, also the limit of that query."""
    first_step_s: float = 0.002
    last_step_s: float = 0.02
    """How often a graph is asked whether it has reached a position: more and more seldom."""
    log_s: float = 1.0
    """Limit of a look at the log for a position."""
    turn_s: float = 0.001
    """How long its events are decoded, at 50 us for a small one, before other tasks get a turn."""
    begin_s: float = 0.005
    """How long requests are begun, or rules of a request are matched, before other tasks get a turn."""
    most_rest_s: float = 0.05
    """The longest rest after long work of a request, in which other tasks run; otherwise as long as the work took."""
    first_retry_s: float = 0.05
    last_retry_s: float = 0.5
    """After a failure of the bus. Short: requests wait for the bus meanwhile."""
    look_s: float = 0.01
    """How often a full replica looks for requests that no other replica takes."""
    report_s: float = 60.0
    """How often a responder logs its counters."""
    resend_s: float = 0.05
    """How often a reply that did not arrive is sent again."""
    resend_limit_s: float = 5.0
    """After this time it is given up: no requester has a budget longer than this."""
    first_trial_s: float = 0.2
    last_trial_s: float = 5.0
    """When a request may ask an unavailable graph again; the wait doubles with each further failure."""
    compile_look_s: float = 0.5
    """How often a responder looks for workflows that are not compiled."""
    skew_ms: int = 50
    """A request that reaches the bus later than this after its deadline comes from a machine whose clock is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalTiming:
    """Searches, and the indexes of scopes in the memory of a responder."""

    build_query_s: float = 5.0
    """Limit of a query that reads a page of a scope."""
    version_s: float = 1.0
    """How long a search waits for the version of the graph before it asks the server."""
    rest: float = 1.0
    """Rest after each step of a build, in the time that it took: requests share the processor with it."""
    pause: float = 10.0
    """Time until a scope's next build, and until any of its app after one that was in vain, in the time that one took:
    a graph that changes all the time is not read all the time."""
    least_pause_s: float = 1.0
    """The least time between two builds of the index of one scope."""
    build_s: float = 120.0
    """The longest build: other apps wait for its end, whatever makes its graph slow."""
    names_s: float = 10.0
    """How long the names of an app's indexes are kept."""
    least_query_s: float = 0.001
    """What a query of a search gets at least: a server refuses a limit of 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTiming:
    """Facts of the graph for a context request."""

    grace_s: float = 0.25
    """What a retrieval may take beyond its limit: what it has found by then is packed."""
    turn_s: float = 0.001
    """How long facts are packed before other tasks run. After each line they would run too often: a turn costs time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTiming:
    """Memory: summaries of threads, retention, and episodes that a model reads."""

    query_s: float = 10.0
    """Limit of a query for the memories of a thread."""
    retention_query_s: float = 30.0
    """Limit of a query for all memories of an app that are due."""
    behind_s: float = 0.1
    """When a job looks again whether the mutation workers have applied an event."""
    older_s: float = 5.0
    """The same for a graph from before an erasure, which has to be made anew."""
    under_way_s: float = 600.0
    """How long a summary may be on its way: then its thread is looked at again."""
    last_pause_s: float = 60.0
    """The longest pause between two tries of an episode."""
    skew_s: float = 300.0
    """If the clocks of a host and of the bus differ by more, nothing is forgotten by its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTiming:
    """When a model is asked again that did not answer as it should."""

    soon_s: float = 1.0
    """After a failure that passes by itself."""
    set_up_s: float = 30.0
    """After one that an operator must mend, as a wrong key."""
    malformed_s: float = 5.0
    """After an answer that is not in its form."""
    longest_s: float = 600.0
    """The longest wait, whatever an endpoint asks for."""
    refused_s: float = 600.0
    """For so long a text without a vector is not sent to the embedder again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveTiming:
    """Archivers."""

    letters_s: float = 30.0
    """How often the dead letters are copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTiming:
    """Commands that replay the log."""

    lease_beat_s: float = 1.0
    """How often a command that has the graphs of an app gives a sign of life."""
    lease_s: float = 10.0
    """A command that gave none for this long was killed."""
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
class EndTiming:
    """How long a role may take to end."""

    said_s: float = 5.0
    """After this it says what it waits for,"""
    look_s: float = 4.0
    """for which it looks so long at its servers."""
    most_s: float = 18.0
    """After this it ends without having finished: ``graphweft up`` kills it after 20 s, Kubernetes after 30."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClockTiming:
    """The clock of a host that takes or answers requests."""

    every_s: float = 30.0
    """How often it is compared with that of the bus."""
    skew_s: float = 0.5
    """By how much it may differ: runtimes wait about half a second for a context."""
    end_s: float = 1.0
    """How long the bus may take to forget it at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """All of them, by area."""

    queues: QueueTiming = QueueTiming()
    effects: EffectTiming = EffectTiming()
    leases: LeaseTiming = LeaseTiming()
    rules: RulesTiming = RulesTiming()
    quarantine: QuarantineTiming = QuarantineTiming()
    writes: WriteTiming = WriteTiming()
    costs: CostTiming = CostTiming()
    quota: QuotaTiming = QuotaTiming()
    jobs: JobTiming = JobTiming()
    context: ContextTiming = ContextTiming()
    retrieval: RetrievalTiming = RetrievalTiming()
    facts: FactTiming = FactTiming()
    memory: MemoryTiming = MemoryTiming()
    models: ModelTiming = ModelTiming()
    archive: ArchiveTiming = ArchiveTiming()
    replay: ReplayTiming = ReplayTiming()
    end: EndTiming = EndTiming()
    host_clock: HostClockTiming = HostClockTiming()
    defect_s: float = 5.0
    """When a partition is opened again after an unexpected error."""
    checkpoints_s: float = 5.0
    """Limit of the query for the checkpoints of an app's graph."""
    seal_s: float = 60.0
    """A rebuild whose seal is older was killed: one that works renews its seal four times as often."""
    turn_s: float = 0.005
    """A loop over events lets others run after this time. Shorter turns are joined: a change takes 10 us."""
    log_s: float = 60.0
    """At most one line of a kind that a peer can cause in this time."""
    file_s: float = 0.5
    """How often a process looks whether a file of the operator has changed. It counts at the second look."""
    graph_look_s: float = 5.0
    """How often a worker looks whether the graph server was emptied, restored or replaced."""
    usage_s: float = 5.0
    """How often a worker reports what apps use."""


TIMING: Final = Timing()
"""What runs in production, and the default wherever a ``Timing`` may be passed in."""
