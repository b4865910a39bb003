"""Collects the metrics of the process by the SDK of OpenTelemetry: for Prometheus, which pulls, and by OTLP, a push.

There is one meter of a process. Who opens it again, such as a second role in the same process, shares it.

Everything goes through one reader. The SDK's own reader for pushes has a thread and a timer, in which it would call
those who watch their metrics; here both ways collect in the event loop. Its reader for Prometheus is a beta, changes
names, and registers itself with everything else that the process has for Prometheus.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import socket
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource

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
    CounterMetric,
    HistogramMetric,
    LabelledValues,
    ObservedMetric,
    TotalMetric,
)

logger = get_logger("graphweft.metrics")

_EXPORT_S: Final = 10
"""How long a push may take, with the tries of the exporter."""

type Attributes = Mapping[str, str]


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
        self._reader = InMemoryMetricReader()
        self._exporter: Any = None if options.otlp is None else _exporter(options.otlp)
        """The SDK's types of its methods are incomplete."""
        resource = {
            "service.name": "graphweft", "service.version": version,
            "service.instance.id": f"{socket.gethostname()}-{os.getpid()}",
        }  # fmt: skip
        # ``Resource.create`` would add what variables of the environment say.
        self._provider = MeterProvider(
            [self._reader], resource=Resource(resource), exemplar_filter=AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )  # fmt: skip
        self._make(options.apps)
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
        found = self._collected()
        if found is None:
            return
        result = await asyncio.to_thread(self._export, self._exporter, found)
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
        self._provider.shutdown()
        if self._exporter is not None:
            self._exporter.shutdown()

    def _make(self, apps: frozenset[str]) -> None:
        meter = self._provider.get_meter("graphweft")
        for metric in METRICS:
            if isinstance(metric, ObservedMetric):
                make = meter.create_observable_counter if isinstance(metric, TotalMetric) else (
                    meter.create_observable_gauge
                )  # fmt: skip
                make(metric.name, [_observer(metric)], metric.unit, metric.text)
            elif isinstance(metric, HistogramMetric):
                histogram = meter.create_histogram(
                    metric.name, metric.unit, metric.text, explicit_bucket_boundaries_advisory=[*metric.bounds]
                )
                metric.sink = _BoundedSink(metric, histogram.record, apps)
            elif isinstance(metric, CounterMetric):
                counter = meter.create_counter(metric.name, metric.unit, metric.text)
                metric.sink = _BoundedSink(metric, counter.add, apps)

    def _collected(self) -> MetricsData | None:
        return self._reader.get_metrics_data()

    @staticmethod
    def _export(exporter: Any, found: MetricsData) -> str:
        """Return why a push failed; empty if it did not."""
        try:
            done = exporter.export(found, timeout_millis=_EXPORT_S * 1000)
        except Exception as error:  # noqa: BLE001 - whatever the exporter's library raises; it may quote a header
            return type(error).__name__
        return "" if done is MetricExportResult.SUCCESS else "the collector did not take them"


class _BoundedSink:
    """Gives the values of a metric to an instrument, with attributes for at most ``limit`` combinations of labels."""

    def __init__(self, metric: CountedMetric, record: Callable[..., None], apps: frozenset[str]) -> None:
        self._names = metric.labels
        self._limit = metric.limit
        self._record = record
        self._apps = apps if metric.by_app else frozenset[str]()
        self._known: dict[tuple[tuple[str, ...], str], Attributes] = {}

    def __call__(self, value: float, labels: tuple[str, ...], app: str) -> None:
        key = labels, (app if app in self._apps else OTHER)
        self._record(value, self._known.get(key) or self._attributes(*key))

    def _attributes(self, labels: tuple[str, ...], app: str) -> Attributes:
        key = labels, app
        if labels and len(self._known) >= self._limit * (1 + len(self._apps)):
            key = (OTHER,) * len(labels), app
        found = dict(zip(self._names, key[0], strict=True))
        if self._apps:
            found[APP] = app
        return self._known.setdefault(key, found)


def _observer(metric: ObservedMetric) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(value, dict(zip(metric.labels, labels, strict=True)))
            for labels, value in metric.values().items()
        ]

    return observe


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
