"""The list of all metrics: name, kind, unit, labels and one sentence for each; ``docs/metrics.md`` is made from it.

Code imports a metric and counts: ``EVENTS_READ.add(3)``. While nobody collects, that costs one look at an attribute.
``meters`` collects, by the SDK of OpenTelemetry.

A metric is a value of the process, like a logger: what counts is deep inside of the engine and of drivers, and would
otherwise get a recorder by thirty constructors.

- Names are those of Prometheus: a unit or ``_total`` ends them. Times are in seconds, sizes in bytes.
- Labels are bounded. A metric takes ``limit`` combinations of their values for each app, in even shares of the values
  of the first label; what finds no place counts for ``OTHER``.
- ``by_app`` metrics have the label ``app`` if the settings list apps; apps that are not listed are ``OTHER``.
- Neither labels nor values are content of an event, of a request or of a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock

OTHER: Final = "other"
"""Stands for the values of labels beyond the limit of their metric, and for apps that are not listed."""
APP: Final = "app"
_LIMIT: Final = 100
_MOST_PARTITIONS: Final = 256

type MetricKind = Literal["counter", "gauge", "histogram"]
type Sink = Callable[[float, tuple[str, ...], str], None]
"""Takes a value, the values of the labels, and an app."""
type LabelledValues = Mapping[tuple[str, ...], float]
"""Values of a metric by those of its labels."""


@dataclass(slots=True, kw_only=True, eq=False)
class Metric:
    """One metric. ``text`` is its sentence in the documentation."""

    kind: ClassVar[MetricKind]

    name: str
    text: str
    labels: tuple[str, ...] = ()
    by_app: bool = False
    limit: int = _LIMIT
    """Combinations of values of the labels."""

    @property
    def unit(self) -> str:
        """The unit, which is the end of the name; empty for a number of what the name says."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in {"seconds", "bytes", "ratio"} else ""


@dataclass(slots=True, kw_only=True, eq=False)
class CountedMetric(Metric):
    """A metric that is counted when something happens."""

    sink: Sink | None = field(default=None, init=False, repr=False)
    """Where values go; None while nobody collects."""


@dataclass(slots=True, kw_only=True, eq=False)
class CounterMetric(CountedMetric):
    """A number that grows."""

    kind: ClassVar[MetricKind] = "counter"

    def add(self, amount: float = 1, *labels: str, app: str = "") -> None:
        """Count ``amount`` more; ``labels`` are in the order of the metric."""
        if self.sink is not None:
            self.sink(amount, labels, app)


@dataclass(slots=True, kw_only=True, eq=False)
class HistogramMetric(CountedMetric):
    """How many values were at most as large as each of some bounds."""

    kind: ClassVar[MetricKind] = "histogram"

    bounds: tuple[float, ...]

    def record(self, value: float, *labels: str, app: str = "") -> None:
        """Count a value; ``labels`` are in the order of the metric."""
        if self.sink is not None:
            self.sink(value, labels, app)

    @contextmanager
    def timed(self, *labels: str, clock: Clock = SYSTEM_CLOCK) -> Generator[None]:
        """Record the seconds that the block takes, also if it raises."""
        if self.sink is None:
            yield
            return
        began = clock.monotonic()
        try:
            yield
        finally:
            self.record(clock.monotonic() - began, *labels)


@dataclass(slots=True, kw_only=True, eq=False)
class ObservedMetric(Metric):
    """A metric that is read when it is collected."""

    readers: list[Callable[[], LabelledValues]] = field(
        default_factory=list[Callable[[], LabelledValues]], init=False, repr=False
    )

    @contextmanager
    def read_from(self, reader: Callable[[], LabelledValues]) -> Generator[None]:
        """Have ``reader`` called at each collection while the block runs. It is quick, and does not raise."""
        self.readers.append(reader)
        try:
            yield
        finally:
            self.readers.remove(reader)

    def values(self) -> dict[tuple[str, ...], float]:
        """Return what all readers say, at most ``limit`` values."""
        found: dict[tuple[str, ...], float] = {}
        for reader in self.readers:
            for labels, value in reader().items():
                if labels in found or len(found) < self.limit:
                    found[labels] = value
        return found


@contextmanager
def observing(readers: Mapping[ObservedMetric, Callable[[], LabelledValues]]) -> Generator[None]:
    """Have the values of some metrics read while the block runs; see ``ObservedMetric.read_from``."""
    with ExitStack() as stack:
        for metric, reader in readers.items():
            stack.enter_context(metric.read_from(reader))
        yield


@dataclass(slots=True, kw_only=True, eq=False)
class GaugeMetric(ObservedMetric):
    """A number as it is now."""

    kind: ClassVar[MetricKind] = "gauge"


@dataclass(slots=True, kw_only=True, eq=False)
class TotalMetric(ObservedMetric):
    """A number that grows, and that something counts anyway."""

    kind: ClassVar[MetricKind] = "counter"


_SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_LONG: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3_600.0)
_COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.5)

LABELS: Final[Mapping[str, str]] = {
    "app": "an app that `GRAPHWEFT_METRICS_APPS` lists, or `other`",
    "cause": "`no_rules`, or `skipped`: the event lacked a value",
    "change": "`claimed`, `given_up` to another worker that asks for it, or `lost` to one",
    "direction": "`input` or `output`",
    "event": "the event of an entry of the log, or the logger of a library",
    "group": "the group of readers of a job",
    "kind": "what kind of call it is: see the sentence",
    "level": "`warning`, `error` or `critical`",
    "operation": "what the bus was asked for: `append` or `commit`",
    "outcome": "`whole`, `partial`, `empty`, `expired` or `refused`",
    "partition": "the number of a partition",
    "path": "the path of a route, or `other`",
    "python": "the version of Python",
    "reason": "a reason code; empty for none",
    "result": "see the sentence",
    "role": "the role of the process",
    "rule": "the id of a rule",
    "server": "`bus` or `graph`",
    "status": "the status of HTTP",
    "version": "the version of graphweft",
    "workflow": "a workflow",
}
"""What the labels hold."""

# Intake

EVENTS_RECEIVED: Final = CounterMetric(
    name="graphweft_events_received_total", by_app=True,
    text="Events in the bodies of requests to the gateway.",
)  # fmt: skip
EVENTS_PUBLISHED: Final = TotalMetric(
    name="graphweft_events_published_total", labels=("result",),
    text="Events that the gateway's client has given to the bus, by result: `sent`, `dropped` or `rejected`.",
)  # fmt: skip
CLIENT_BUFFER: Final = GaugeMetric(
    name="graphweft_client_buffer_events",
    text="Events of the gateway's client that the bus has not confirmed.",
)  # fmt: skip
GATEWAY_REQUESTS: Final = CounterMetric(
    name="graphweft_gateway_requests_total", labels=("path", "status"),
    text="Requests to the gateway.",
)  # fmt: skip
GATEWAY_DURATION: Final = HistogramMetric(
    name="graphweft_gateway_request_duration_seconds", labels=("path",), bounds=_SHORT,
    text="Seconds from a request to the gateway to the end of its answer.",
)  # fmt: skip

# Events on their way into the graph

EVENTS_READ: Final = CounterMetric(
    name="graphweft_events_read_total",
    text="Entries of the log that the worker has read and matched, activations of rules included.",
)  # fmt: skip
EVENTS_APPLIED: Final = CounterMetric(
    name="graphweft_events_applied_total", by_app=True,
    text="Events with matching rules whose effect is in the graph.",
)  # fmt: skip
EVENT_VISIBLE: Final = HistogramMetric(
    name="graphweft_event_visible_seconds", by_app=True, bounds=_LONG,
    text="Seconds from the time at which the bus took an event until its effect is in the graph; of a batch, 16 events "
    "at most are measured.",
)  # fmt: skip
BATCH_DURATION: Final = HistogramMetric(
    name="graphweft_batch_duration_seconds", bounds=_LONG,
    text="Seconds in which the events of an app that were taken together took effect.",
)  # fmt: skip
BATCH_EVENTS: Final = HistogramMetric(
    name="graphweft_batch_events", bounds=_COUNTS,
    text="Events of an app that were taken together.",
)  # fmt: skip
DUPLICATES: Final = CounterMetric(
    name="graphweft_duplicates_total",
    text="Copies of events, which have no effect.",
)  # fmt: skip
WITHOUT_EFFECT: Final = CounterMetric(
    name="graphweft_without_effect_total", labels=("cause",),
    text="Mutations and events without effect because something was missing.",
)  # fmt: skip
RULE_MATCHES: Final = CounterMetric(
    name="graphweft_rule_matches_total", labels=("workflow", "rule"), limit=200,
    text="Mutations of events that took effect, by rule. Workflows share 200 places evenly: the rules of a workflow "
    "beyond its share are its rule `other`.",
)  # fmt: skip
RETRIES: Final = CounterMetric(
    name="graphweft_retries_total",
    text="Retries of dead letters that took effect.",
)  # fmt: skip
EFFECTS_WRITTEN: Final = CounterMetric(
    name="graphweft_effects_written_total",
    text="Messages that this worker has written to the effects stream.",
)  # fmt: skip
EFFECTS_FAILED: Final = CounterMetric(
    name="graphweft_effects_failed_total",
    text="Writes to the effects stream that the bus has refused; their messages are written later, together.",
)  # fmt: skip
EFFECTS_LOST: Final = CounterMetric(
    name="graphweft_effects_lost_total",
    text="Messages to the effects stream that were given up after refusals: too many apps waited, or the worker gave "
    "the partition up.",
)  # fmt: skip
PARTITION_LAG: Final = GaugeMetric(
    name="graphweft_partition_lag_events", labels=("partition",), limit=_MOST_PARTITIONS,
    text="Events behind the committed position, of the partitions that this worker holds or nobody does.",
)  # fmt: skip
OLDEST_UNAPPLIED: Final = GaugeMetric(
    name="graphweft_oldest_unapplied_seconds", labels=("partition",), limit=_MOST_PARTITIONS,
    text="Age of the first event behind the committed position, of the same partitions; 0 without one.",
)  # fmt: skip
PARTITIONS_OWNED: Final = GaugeMetric(
    name="graphweft_partitions_owned",
    text="Partitions that this worker holds.",
)  # fmt: skip
PARTITIONS_UNOWNED: Final = GaugeMetric(
    name="graphweft_partitions_unowned",
    text="Partitions that no worker holds.",
)  # fmt: skip
PARTITION_FAULTS: Final = GaugeMetric(
    name="graphweft_partition_faults",
    text="Partitions that take no events, or give them wrong times; `graphweft status` says why.",
)  # fmt: skip
LEASE_CHANGES: Final = CounterMetric(
    name="graphweft_lease_changes_total", labels=("change",),
    text="Partitions that this process claimed (again after each failure), gave up or lost.",
)  # fmt: skip
PARKED_APPS: Final = GaugeMetric(
    name="graphweft_parked_apps", labels=("reason",),
    text="Apps that are behind the others of their partition, of the partitions of `graphweft_partition_lag_events`.",
)  # fmt: skip

# Failures

DEAD_LETTERS: Final = GaugeMetric(
    name="graphweft_dead_letters",
    text="Dead letters on the bus.",
)  # fmt: skip
DEAD_LETTERS_WRITTEN: Final = CounterMetric(
    name="graphweft_dead_letters_total", labels=("reason",), by_app=True,
    text="Dead letters that this process has written, repeated ones included.",
)  # fmt: skip
DEAD_LETTER_OLDEST: Final = GaugeMetric(
    name="graphweft_dead_letter_oldest_seconds",
    text="Age of the oldest dead letter; 0 without one.",
)  # fmt: skip
QUARANTINES: Final = CounterMetric(
    name="graphweft_quarantines_total",
    text="How often a mutation was put in quarantine because its rows failed.",
)  # fmt: skip

# Context

CONTEXT_REQUESTS: Final = CounterMetric(
    name="graphweft_context_requests_total", labels=("outcome", "reason"), by_app=True,
    text="Context requests that this responder took, by what became of them.",
)  # fmt: skip
CONTEXT_DURATION: Final = HistogramMetric(
    name="graphweft_context_duration_seconds", by_app=True, bounds=_SHORT,
    text="Seconds of work on a context request.",
)  # fmt: skip
CONTEXT_BUDGET: Final = HistogramMetric(
    name="graphweft_context_budget_used_ratio", bounds=_SHARES,
    text="Share of the time to its deadline that work on a context request took.",
)  # fmt: skip
CONTEXT_TOKENS: Final = HistogramMetric(
    name="graphweft_context_tokens", bounds=_COUNTS,
    text="Tokens of the text of a context.",
)  # fmt: skip
CONTEXT_WAITING: Final = GaugeMetric(
    name="graphweft_context_waiting_requests",
    text="Context requests that wait for a slot of this responder.",
)  # fmt: skip
CONTEXT_SHED: Final = CounterMetric(
    name="graphweft_shed_total",
    text="Context requests that were refused because too many were there.",
)  # fmt: skip
CONTEXT_TAKEN_OVER: Final = TotalMetric(
    name="graphweft_context_taken_over_total", labels=("result",),
    text="Context requests that this responder took because another one was silent: `taken`, and of these `won`, "
    "which it answered before their deadline.",
)  # fmt: skip
CACHE_REQUESTS: Final = TotalMetric(
    name="graphweft_cache_requests_total", labels=("result",),
    text="Queries of contexts by what the cache had: `hit`, `miss`, or `joined`, an equal query under way.",
)  # fmt: skip
CACHE_BYTES: Final = GaugeMetric(
    name="graphweft_cache_bytes",
    text="Bytes of the rows that the responder caches.",
)  # fmt: skip

# Servers

DB_DURATION: Final = HistogramMetric(
    name="graphweft_db_query_duration_seconds", labels=("kind",), bounds=_SHORT,
    text="Seconds of a call of the graph server, by kind: `write`, `durable` (is it on disk), `cypher`, "
    "`search` or `facts`.",
)  # fmt: skip
DB_TURN_WAIT: Final = HistogramMetric(
    name="graphweft_db_turn_wait_seconds", bounds=_SHORT,
    text="Seconds that writes of an app waited for its turn: an app with slow writes rests.",
)  # fmt: skip
WITHOUT_TURN: Final = TotalMetric(
    name="graphweft_db_without_turn_total",
    text="Slow queries of contexts that ended because they got no turn in time.",
)  # fmt: skip
BUS_DURATION: Final = HistogramMetric(
    name="graphweft_bus_operation_duration_seconds", labels=("operation",), bounds=_SHORT,
    text="Seconds of a call of the bus.",
)  # fmt: skip
BUS_MEMORY: Final = GaugeMetric(
    name="graphweft_bus_memory_ratio",
    text="Share of its memory limit that the server of the bus uses; missing if it has no limit.",
)  # fmt: skip
CONNECTION_UP: Final = GaugeMetric(
    name="graphweft_connection_up", labels=("server",),
    text="1 if a server that the role needs answers, 0 if not.",
)  # fmt: skip

# Jobs and models

JOB_LAG: Final = GaugeMetric(
    name="graphweft_backlog_events", labels=("group",),
    text="Events that a job of memory has not handled.",
)  # fmt: skip
JOB_EVENTS: Final = CounterMetric(
    name="graphweft_job_events_total", labels=("group",),
    text="Events that a job of memory has appended to the bus.",
)  # fmt: skip
JOB_WAITING: Final = GaugeMetric(
    name="graphweft_job_waiting_seconds", labels=("group",),
    text="Seconds for which a job has waited for what it needs, such as its model, in the partition that waits "
    "longest; 0 while it goes on.",
)  # fmt: skip
JOB_SKIPPED: Final = CounterMetric(
    name="graphweft_job_skipped_total", labels=("group", "reason"), by_app=True,
    text="What a job of memory left out without a dead letter, by reason: `text_refused` by the embedder, "
    "`query_failed`, `event_refused` by the bus, or `events_lost`, which were trimmed before it read them; or "
    "`made_of_erased`: what it put on the bus at the moment at which an erasure of the app ended.",
)  # fmt: skip
VERDICTS: Final = CounterMetric(
    name="graphweft_verdicts_total", labels=("result",),
    text="What a model said of two statements, by result: `same`, `ends` and `contradicts` had an effect, `unrelated` "
    "has none, `refused` may not end what it names, `outdated` was about a statement that has changed, `gone` about "
    "one that is forgotten, `failed` had no answer.",
)  # fmt: skip
MODEL_CALLS: Final = CounterMetric(
    name="graphweft_model_calls_total", labels=("kind", "result"),
    text="Requests to models over HTTP, by kind (`embedding` or `chat`) and result: `ok`, `refused` or `unavailable`.",
)  # fmt: skip
MODEL_DURATION: Final = HistogramMetric(
    name="graphweft_model_call_duration_seconds", labels=("kind",), bounds=_LONG,
    text="Seconds of a request to a model over HTTP, by kind: `embedding` or `chat`.",
)  # fmt: skip
MODEL_TOKENS: Final = CounterMetric(
    name="graphweft_model_tokens_total", labels=("kind", "direction"),
    text="Tokens of these requests and answers, as the endpoint counts them.",
)  # fmt: skip

# Archive and rules

ARCHIVED: Final = TotalMetric(
    name="graphweft_archived_events_total",
    text="Entries of the log that this process has archived.",
)  # fmt: skip
ARCHIVE_BEHIND: Final = GaugeMetric(
    name="graphweft_archive_behind_events",
    text="Entries of the log that the archive lacks.",
)  # fmt: skip
ARCHIVE_LOST: Final = GaugeMetric(
    name="graphweft_archive_lost_events",
    text="Entries of the log that were trimmed before they were archived, and that nobody has accepted as lost.",
)  # fmt: skip
RULE_SETS: Final = GaugeMetric(
    name="graphweft_rule_sets_active",
    text="Rule sets that are active, each counted once.",
)  # fmt: skip
RULES_LOST: Final = GaugeMetric(
    name="graphweft_rules_lost",
    text="Active rule sets that the bus has lost; `graphweft status` says how to restore them.",
)  # fmt: skip

# Process

LOOP_LAG: Final = HistogramMetric(
    name="graphweft_event_loop_lag_seconds", bounds=_SHORT,
    text="Seconds by which the event loop woke a task too late; it looks twice a second.",
)  # fmt: skip
TURN_AGE: Final = GaugeMetric(
    name="graphweft_turn_age_seconds",
    text="Seconds since the event loop last turned for the heartbeat; more than 2 means that it was held.",
)  # fmt: skip
GC_PAUSE: Final = HistogramMetric(
    name="graphweft_gc_pause_seconds", bounds=_SHORT,
    text="Seconds in which Python searched for cycles of objects.",
)  # fmt: skip
CPU: Final = TotalMetric(
    name="graphweft_process_cpu_seconds_total",
    text="Processor time of the process.",
)  # fmt: skip
MEMORY: Final = GaugeMetric(
    name="graphweft_process_resident_memory_bytes",
    text="Memory that the process has in use; only on Linux.",
)  # fmt: skip
OPEN_FILES: Final = GaugeMetric(
    name="graphweft_process_open_files",
    text="Open files and connections of the process; only on Linux.",
)  # fmt: skip
RUNNING: Final = GaugeMetric(
    name="graphweft_role_running", labels=("role",),
    text="1 if the role has begun its work, 0 while it starts.",
)  # fmt: skip
BUILD: Final = GaugeMetric(
    name="graphweft_build_info", labels=("version", "python"),
    text="1, with the versions as labels.",
)  # fmt: skip
PUSHES: Final = CounterMetric(
    name="graphweft_metrics_pushes_total", labels=("result",),
    text="Pushes of metrics by OTLP, by result: `ok` or `failed`.",
)  # fmt: skip
LOOKS_FAILED: Final = CounterMetric(
    name="graphweft_metrics_looks_failed_total",
    text="Collections at which the bus did not say in time what it holds: metrics of it are missing then.",
)  # fmt: skip
LOG_ENTRIES: Final = CounterMetric(
    name="graphweft_log_entries_total", labels=("level", "event"),
    text="Warnings and errors in the log of the process. Entries that a limit left out count with the next one of "
    "their kind; those below `GRAPHWEFT_LOG_LEVEL` do not count.",
)  # fmt: skip

GROUPS: Final[Mapping[str, Sequence[Metric]]] = {
    "Intake": (EVENTS_RECEIVED, EVENTS_PUBLISHED, CLIENT_BUFFER, GATEWAY_REQUESTS, GATEWAY_DURATION),
    "Events": (
        EVENTS_READ, EVENTS_APPLIED, EVENT_VISIBLE, BATCH_DURATION, BATCH_EVENTS, DUPLICATES, WITHOUT_EFFECT,
        RULE_MATCHES, RETRIES, EFFECTS_WRITTEN, EFFECTS_FAILED, EFFECTS_LOST, PARTITION_LAG, OLDEST_UNAPPLIED,
        PARTITIONS_OWNED, PARTITIONS_UNOWNED, PARTITION_FAULTS,
        LEASE_CHANGES, PARKED_APPS,
    ),
    "Failures": (DEAD_LETTERS, DEAD_LETTERS_WRITTEN, DEAD_LETTER_OLDEST, QUARANTINES),
    "Context": (
        CONTEXT_REQUESTS, CONTEXT_DURATION, CONTEXT_BUDGET, CONTEXT_TOKENS, CONTEXT_WAITING, CONTEXT_SHED,
        CONTEXT_TAKEN_OVER, CACHE_REQUESTS, CACHE_BYTES,
    ),
    "Servers": (DB_DURATION, DB_TURN_WAIT, WITHOUT_TURN, BUS_DURATION, BUS_MEMORY, CONNECTION_UP),
    "Jobs and models": (
        JOB_LAG, JOB_EVENTS, JOB_WAITING, JOB_SKIPPED, VERDICTS, MODEL_CALLS, MODEL_DURATION, MODEL_TOKENS,
    ),
    "Archive and rules": (ARCHIVED, ARCHIVE_BEHIND, ARCHIVE_LOST, RULE_SETS, RULES_LOST),
    "Process": (
        LOOP_LAG, TURN_AGE, GC_PAUSE, CPU, MEMORY, OPEN_FILES, RUNNING, BUILD, PUSHES, LOOKS_FAILED,
        LOG_ENTRIES,
    ),
}  # fmt: skip
"""All of them, as the documentation has them."""
METRICS: Final[tuple[Metric, ...]] = tuple(metric for some in GROUPS.values() for metric in some)
