"""Collects the metrics of the process, for Prometheus, which pulls, and by OTLP, a push.

What is collected has the form of OpenTelemetry's SDK, whose exporter pushes it; ``meters_text`` makes Prometheus' text
from the same. Only the adding up is done here: the SDK takes 8 us for each value, which was a seventh of a worker's
processor time with small batches. Here it takes less than a microsecond.

There is one meter of a process. Who opens it again, such as a second role in the same process, shares it. Values are
counted in the event loop; the few that threads count may lose one of two at the same moment.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import platform
import socket
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final, Protocol

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as CollectedMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.log_limit import LogLimit
from graphweft_workers.telemetry.meters_text import text_of
from graphweft_workers.telemetry.metrics import (
    APP,
    BUILD,
    GC_PAUSE,
    METRICS,
    OTHER,
    PUSHES,
    CountedMetric,
    HistogramMetric,
    LabelledValues,
    Metric,
    ObservedMetric,
)

logger = get_logger("graphweft.metrics")

_EXPORT_S: Final = 10
"""How long a push may take, with the tries of the exporter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpTarget:
    """Where metrics are pushed. ``headers`` may hold a secret."""

    url: str
    """The whole URL, which usually ends with ``/v1/metrics``."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterOptions:
    """What the settings say about metrics."""

    apps: frozenset[str] = frozenset()
    """Apps with a label of their own."""
    otlp: OtlpTarget | None = None


class ProcessMeter:
    """Collects the metrics of this process; ``metering`` opens it."""

    def __init__(self, options: MeterOptions, clock: Clock = SYSTEM_CLOCK) -> None:
        """From now on metrics are counted."""
        version = metadata.version("graphweft")
        self.options = options
        self.opened = 0
        """How many have opened it."""
        self._clock = clock
        self._exporter: Any = None if options.otlp is None else _exporter(options.otlp)
        """The SDK's types of its methods are incomplete."""
        resource = {
            "service.name": "graphweft", "service.version": version,
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }  # fmt: skip
        # ``Resource.create`` would add what variables of the environment say.
        self._resource = Resource(resource)
        self._scope = InstrumentationScope("graphweft", version)
        self._began = _nanoseconds(clock)
        self._sinks: dict[CountedMetric, CounterSink | HistogramSink] = {}
        for metric in METRICS:
            if isinstance(metric, CountedMetric):
                kind = HistogramSink if isinstance(metric, HistogramMetric) else CounterSink
                metric.sink = self._sinks[metric] = kind(metric, options.apps)
        self._failing = LogLimit(clock=clock)
        self._stack = ExitStack()
        build: LabelledValues = {(version, platform.python_version()): 1.0}
        self._stack.enter_context(BUILD.read_from(lambda: build))
        self._stack.enter_context(_gc_pauses(clock))

    def text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return text_of(self._collected())

    async def push(self) -> None:
        """Push all metrics by OTLP, if there is a target. A failure is counted, and logged once a minute."""
        if self._exporter is None or self.options.otlp is None:
            return
        result = await asyncio.to_thread(self._export, self._exporter, self._collected())
        PUSHES.add(1, "failed" if result else "ok")
        if result and (left_out := self._failing.admit("metrics_not_pushed")) is not None:
            logger.warning(
                "metrics_not_pushed", error=result, left_out=left_out,
                next="set GRAPHWEFT_METRICS_OTLP_URL to the URL of a collector, with /v1/metrics; counts are not lost, "
                "the next push has them",
            )  # fmt: skip

    def close(self) -> None:
        """Count no longer."""
        for metric in METRICS:
            if isinstance(metric, CountedMetric):
                metric.sink = None
        self._stack.close()
        if self._exporter is not None:
            self._exporter.shutdown()

    def _collected(self) -> MetricsData:
        """Return all metrics that have values."""
        now = _nanoseconds(self._clock)
        found: list[CollectedMetric] = []
        for metric in METRICS:
            data = self._data(metric, now)
            if data.data_points:
                found.append(CollectedMetric(metric.name, metric.text, metric.unit, data))
        scope = ScopeMetrics(self._scope, found, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])

    def _data(self, metric: Metric, now: int) -> Sum | Gauge | Histogram:
        began = self._began
        if isinstance(metric, CountedMetric):
            sink = self._sinks[metric]
            if isinstance(sink, HistogramSink):
                points = [
                    HistogramDataPoint(attributes, began, now, sum(cell.counts), cell.total, cell.counts.copy(),
                                       sink.bounds, cell.least, cell.most)
                    for attributes, cell in sink.values()
                ]  # fmt: skip
                return Histogram(points, AggregationTemporality.CUMULATIVE)
            values = [(attributes, cell.total) for attributes, cell in sink.values()]
        else:
            values = [(dict(zip(metric.labels, labels, strict=True)), value) for labels, value in _observed(metric)]
        numbers = [NumberDataPoint(attributes, began, now, value) for attributes, value in values]
        if metric.kind == "gauge":
            return Gauge(numbers)
        return Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)

    @staticmethod
    def _export(exporter: Any, found: MetricsData) -> str:
        """Return why a push failed; empty if it did not."""
        try:
            done = exporter.export(found, timeout_millis=_EXPORT_S * 1000)
        except Exception as error:  # noqa: BLE001 - whatever the exporter's library raises; it may quote a header
            return type(error).__name__
        return "" if done is MetricExportResult.SUCCESS else "the collector did not take them"


@dataclass(slots=True)
class CounterCell:
    """The sum of the values with the same labels."""

    total: float = 0.0

    def merge(self, other: CounterCell) -> None:
        """Add what another cell has."""
        self.total += other.total


@dataclass(slots=True)
class HistogramCell:
    """The values with the same labels: how many are in each interval, and their sum."""

    counts: list[int]
    total: float = 0.0
    least: float = math.inf
    most: float = -math.inf

    def merge(self, other: HistogramCell) -> None:
        """Add what another cell has."""
        self.counts = [one + two for one, two in zip(self.counts, other.counts, strict=True)]
        self.total += other.total
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)


class _Cell(Protocol):
    def merge(self, other: Any) -> None: ...


class LabelledCells[C: _Cell]:
    """The cells of one metric, for at most ``limit`` combinations of labels of each app.

    The values of the first label, such as workflows, share them evenly: once all are taken, one with few combinations
    gets a place of the one with the most, whose last one counts for its ``OTHER`` from then on. So none blinds others.
    """

    def __init__(self, metric: CountedMetric, apps: frozenset[str], make: Callable[[], C]) -> None:
        self._names = metric.labels
        self._apps = apps if metric.by_app else frozenset[str]()
        self._most = metric.limit
        self._make = make
        self._taken: dict[str, dict[str, list[tuple[str, ...]]]] = {}
        """The combinations of each app, by the value of the first label."""
        self._cells: dict[tuple[tuple[str, ...], str], C] = {}

    def values(self) -> Iterator[tuple[dict[str, str], C]]:
        """Yield the labels of each cell, and the cell."""
        for (labels, app), cell in self._cells.items():
            attributes = dict(zip(self._names, labels, strict=True))
            yield (attributes | {APP: app} if self._apps else attributes), cell

    def cell(self, labels: tuple[str, ...], app: str) -> C:
        """Return the cell of some labels; beyond the limit, the one that stands for all others."""
        key = labels, (app if app in self._apps else OTHER)
        cell = self._cells.get(key)
        if cell is None:
            if labels:
                key = self._place(labels, key[1]), key[1]
            cell = self._cells.setdefault(key, self._make())
        return cell

    def _place(self, labels: tuple[str, ...], app: str) -> tuple[str, ...]:
        """Return the labels that new ones count for: their own, if they get a place."""
        taken = self._taken.setdefault(app, {})
        own = taken.get(labels[0], [])
        if sum(map(len, taken.values())) >= self._most:
            first, fullest = max(taken.items(), key=lambda item: len(item[1]))
            rest = (OTHER,) * (len(labels) - 1)
            if len(fullest) <= len(own) + 1:
                return (labels[0] if own else OTHER, *rest)
            gone = fullest.pop(-1 if fullest[-1] != (first, *rest) else -2)
            self._cells.setdefault(((first, *rest), app), self._make()).merge(self._cells.pop((gone, app)))
        taken.setdefault(labels[0], own).append(labels)
        return labels


class CounterSink(LabelledCells[CounterCell]):
    """Adds up the values of a counter."""

    def __init__(self, metric: CountedMetric, apps: frozenset[str]) -> None:
        super().__init__(metric, apps, CounterCell)

    def __call__(self, value: float, labels: tuple[str, ...], app: str) -> None:
        """Add a value."""
        self.cell(labels, app).total += value


class HistogramSink(LabelledCells[HistogramCell]):
    """Counts the values of a histogram."""

    def __init__(self, metric: CountedMetric, apps: frozenset[str]) -> None:
        self.bounds = metric.bounds if isinstance(metric, HistogramMetric) else ()
        super().__init__(metric, apps, lambda: HistogramCell([0] * (len(self.bounds) + 1)))

    def __call__(self, value: float, labels: tuple[str, ...], app: str) -> None:
        """Count a value: an interval has its upper bound."""
        cell = self.cell(labels, app)
        cell.counts[bisect_left(self.bounds, value)] += 1
        cell.total += value
        cell.least, cell.most = min(cell.least, value), max(cell.most, value)


def _observed(metric: Metric) -> Iterable[tuple[tuple[str, ...], float]]:
    return metric.values().items() if isinstance(metric, ObservedMetric) else ()


def _nanoseconds(clock: Clock) -> int:
    return int(clock.now().timestamp() * 1e9)


@contextmanager
def _gc_pauses(clock: Clock) -> Generator[None]:
    began = 0.0

    def collect(phase: str, _: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = clock.monotonic()
        else:
            GC_PAUSE.record(clock.monotonic() - began)

    gc.callbacks.append(collect)
    try:
        yield
    finally:
        gc.callbacks.remove(collect)


def _exporter(target: OtlpTarget) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter(endpoint=target.url, headers=dict(target.headers), timeout=_EXPORT_S)


_open: list[ProcessMeter] = []
"""The meter of this process, while it is open."""


@contextmanager
def metering(options: MeterOptions) -> Generator[ProcessMeter]:
    """Count metrics while the block runs. While the process has a meter, that one is shared, with its own options."""
    if not _open:
        _open.append(ProcessMeter(options))
    meter = _open[0]
    if meter.options != options:
        logger.warning("metrics_shared", next="roles of one process count together, by the settings of the first one")
    meter.opened += 1
    try:
        yield meter
    finally:
        meter.opened -= 1
        if not meter.opened:
            _open.clear()
            meter.close()
