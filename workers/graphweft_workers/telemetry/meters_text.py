"""Prometheus' text format, from what was collected in the form of the SDK.

See https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4). Names and units are in the list of
metrics as Prometheus wants them, so nothing is renamed. The library ``prometheus_client`` is not needed for that; a
test reads the text with its parser.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from opentelemetry.sdk.metrics.export import (
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
)
from opentelemetry.sdk.metrics.export import (
    Metric as CollectedMetric,
)

from graphweft_workers.telemetry.metrics import METRICS

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_KINDS: Final = {metric.name: metric.kind for metric in METRICS}


def text_of(found: MetricsData) -> str:
    """Return the text of what was collected."""
    lines: list[str] = []
    for metric in _metrics(found):
        lines += [f"# HELP {metric.name} {_escaped(metric.description or '', quote=False)}"]
        lines += [f"# TYPE {metric.name} {_KINDS.get(metric.name, 'untyped')}"]
        for point in metric.data.data_points:
            if isinstance(point, HistogramDataPoint):
                lines += _histogram(metric.name, point)
            elif isinstance(point, NumberDataPoint):
                lines += [f"{metric.name}{_labels(point.attributes)} {_number(point.value)}"]
    return "".join(f"{line}\n" for line in lines)


def _metrics(found: MetricsData) -> Iterator[CollectedMetric]:
    for resource in found.resource_metrics:
        for scope in resource.scope_metrics:
            yield from scope.metrics


def _histogram(name: str, point: HistogramDataPoint) -> Iterator[str]:
    total = 0
    for bound, count in zip([*point.explicit_bounds, math.inf], point.bucket_counts, strict=True):
        total += count
        yield f"{name}_bucket{_labels(point.attributes, ('le', _number(bound)))} {total}"
    yield f"{name}_sum{_labels(point.attributes)} {_number(point.sum)}"
    yield f"{name}_count{_labels(point.attributes)} {point.count}"


def _labels(attributes: Mapping[str, object] | None, *more: tuple[str, str]) -> str:
    pairs: Iterable[tuple[str, object]] = [*(attributes or {}).items(), *more]
    text = ",".join(f'{name}="{_escaped(str(value), quote=True)}"' for name, value in pairs)
    return f"{{{text}}}" if text else ""


def _escaped(text: str, *, quote: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value) if isinstance(value, int) or not value.is_integer() else str(int(value))
