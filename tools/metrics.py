"""The page of metrics, from the list in ``graphweft_workers.telemetry.metrics``."""

from __future__ import annotations

from typing import Final

from graphweft_workers.telemetry.metrics import APP, GROUPS, LABELS, METRICS, Metric
from tools.dashboards import DASHBOARDS, FOLDER

_BEGIN: Final = """\
# Metrics

<!-- `make generate` writes this page from workers/graphweft_workers/telemetry/metrics.py and tools/metrics.py. -->

Each role can count what it does. Install the extra `telemetry` beside `worker`, and choose one way or both:

- **Prometheus pulls.** Set `GRAPHWEFT_METRICS=true` and `GRAPHWEFT_PROBE_ADDRESS=0.0.0.0:8080`: the role answers
  `/metrics`, in Prometheus' text format, beside its [probes](commands.md#probes). No token is asked, so leave the
  port inside the cluster.
- **The role pushes by OTLP** over HTTP. Set `GRAPHWEFT_METRICS_OTLP_URL=http://collector:4318/v1/metrics`, and what
  the collector needs, such as a token, in `GRAPHWEFT_METRICS_OTLP_HEADERS` (`authorization=Bearer …`). It pushes
  every `GRAPHWEFT_METRICS_EVERY_S` seconds, and once when it ends. The roles of `graphweft up` can push too; they
  have no address to be asked at.

Without these settings nothing is counted, and the packages need not be there. Values and labels never hold content of
events, requests or replies. A metric takes a limited number of combinations of labels. Further ones count for `other`;
of a state that is read, such as the lag of a partition, they are left out. Apps have no labels of their own, unless you
list some: with `GRAPHWEFT_METRICS_APPS=shop,bank` the metrics with the label `app` tell these two apart, and count the
rest for `other`.

The state of partitions, dead letters, rules and the archive is read from the bus when metrics are collected: at most
every 5 seconds, rules and archive every 60, by connections that the role has. While the bus does not answer, these
metrics are missing, `graphweft_connection_up` is 0, and `graphweft_metrics_looks_failed_total` grows.

Some questions, for Prometheus:

{questions}

[Alerts](alerts.md) on these metrics have a section each on what to do. Dashboards for Grafana:
{dashboards}. Import the files, and choose your Prometheus at the top.

A partition that nobody holds is in the metrics of each worker: take `max by (partition)`. The same goes for dead
letters and rules, which each worker reads. Names are those of Prometheus in both ways; a histogram has the suffixes
`_bucket`, `_sum` and `_count` there.
"""
_QUESTIONS: Final = (
    (
        "events applied per second",
        "sum(rate(graphweft_events_applied_total[1m]))",
    ),
    (
        "time until 99 of 100 events are in the graph",
        "histogram_quantile(0.99, sum by (le) (rate(graphweft_event_visible_seconds_bucket[5m])))",
    ),
    (
        "how far the graphs are behind",
        "sum(max by (partition) (graphweft_partition_lag_events))",
    ),
    (
        "age of the oldest event that is not applied",
        "max(graphweft_oldest_unapplied_seconds)",
    ),
    (
        "share of contexts that lack something",
        'sum(rate(graphweft_context_requests_total{outcome!="whole"}[5m])) '
        "/ sum(rate(graphweft_context_requests_total[5m]))",
    ),
    (
        "contexts from the cache",
        'sum(rate(graphweft_cache_requests_total{result="hit"}[5m])) / sum(rate(graphweft_cache_requests_total[5m]))',
    ),
    (
        "model tokens per hour",
        "sum by (kind, direction) (increase(graphweft_model_tokens_total[1h]))",
    ),
)


def render() -> str:
    """Return the page."""
    questions = "| question | query |\n|---|---|\n" + "\n".join(
        f"| {asked} | `{query}` |" for asked, query in _QUESTIONS
    )
    links = ", ".join(f"[{name}](../{FOLDER}/{name}.json)" for name in DASHBOARDS)
    parts = [_BEGIN.replace("{questions}", questions).replace("{dashboards}", links)]
    for title, some in GROUPS.items():
        rows = "".join(map(_row, some))
        parts.append(f"\n## {title}\n\n| metric | kind | labels | what it is |\n|---|---|---|---|\n{rows}")
    used = sorted({label for metric in METRICS for label in _labels(metric)})
    rows = "".join(f"| `{label}` | {LABELS[label]} |\n" for label in used)
    parts.append(f"\n## Labels\n\n| label | values |\n|---|---|\n{rows}")
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in _labels(metric))
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |\n"


def _labels(metric: Metric) -> tuple[str, ...]:
    return (*metric.labels, APP) if metric.by_app else metric.labels
