"""Dashboards for Grafana, from lists of panels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

FOLDER: Final = "deploy/grafana"
_WIDTH: Final = 12
_HEIGHT: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph over time. ``queries`` are by legend; ``unit`` is one of Grafana's."""

    title: str
    unit: str
    queries: Mapping[str, str]


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return {
        f"p{round(share * 100)}{legend}": f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[5m])))"
        for share in (0.5, 0.99)
    }


def _rate(metric: str, by: str = "") -> dict[str, str]:
    if not by:
        return {"per second": f"sum(rate({metric}[5m]))"}
    legend = " ".join(f"{{{{{label.strip()}}}}}" for label in by.split(","))
    return {legend: f"sum by ({by}) (rate({metric}[5m]))"}


DASHBOARDS: Final[Mapping[str, Sequence[Panel]]] = {
    "events": (
        Panel(title="Events applied", unit="ops", queries=_rate("graphweft_events_applied_total")),
        Panel(title="From the bus into the graph", unit="s", queries=_quantiles("graphweft_event_visible_seconds")),
        Panel(
            title="Events that wait",
            unit="short",
            queries={"events": "sum(max by (partition) (graphweft_partition_lag_events))"},
        ),
        Panel(
            title="Age of the oldest event that waits",
            unit="s",
            queries={"partition {{partition}}": "max by (partition) (graphweft_oldest_unapplied_seconds) > 0"},
        ),
        Panel(title="Batches", unit="s", queries=_quantiles("graphweft_batch_duration_seconds")),
        Panel(title="Mutations by rule", unit="ops", queries=_rate("graphweft_rule_matches_total", "workflow, rule")),
        Panel(
            title="Partitions",
            unit="short",
            queries={
                "held by {{instance}}": "graphweft_partitions_owned",
                "held by nobody": "max(graphweft_partitions_unowned)",
            },
        ),
        Panel(
            title="Apps that are behind",
            unit="short",
            queries={"{{reason}}": "sum by (reason) (graphweft_parked_apps)"},
        ),
    ),
    "failures": (
        Panel(title="Dead letters", unit="short", queries={"dead letters": "max(graphweft_dead_letters)"}),
        Panel(title="New dead letters", unit="ops", queries=_rate("graphweft_dead_letters_total", "reason")),
        Panel(
            title="Age of the oldest dead letter",
            unit="s",
            queries={"age": "max(graphweft_dead_letter_oldest_seconds)"},
        ),
        Panel(title="Without effect", unit="ops", queries=_rate("graphweft_without_effect_total", "cause")),
        Panel(title="Copies", unit="ops", queries=_rate("graphweft_duplicates_total")),
        Panel(title="Quarantines", unit="ops", queries=_rate("graphweft_quarantines_total")),
        Panel(title="Changes of leases", unit="ops", queries=_rate("graphweft_lease_changes_total", "change")),
        Panel(
            title="Rule sets",
            unit="short",
            queries={
                "active": "max(graphweft_rule_sets_active)",
                "lost": "max(graphweft_rules_lost)",
            },
        ),
    ),
    "context": (
        Panel(title="Requests", unit="reqps", queries=_rate("graphweft_context_requests_total", "outcome")),
        Panel(title="Reasons", unit="reqps", queries=_rate("graphweft_context_requests_total", "reason")),
        Panel(title="Time", unit="s", queries=_quantiles("graphweft_context_duration_seconds")),
        Panel(
            title="Share of the budget", unit="percentunit", queries=_quantiles("graphweft_context_budget_used_ratio")
        ),
        Panel(title="Tokens", unit="short", queries=_quantiles("graphweft_context_tokens")),
        Panel(title="Cache", unit="ops", queries=_rate("graphweft_cache_requests_total", "result")),
        Panel(title="Refused, too many", unit="reqps", queries=_rate("graphweft_shed_total")),
        Panel(title="Waiting", unit="short", queries={"{{instance}}": "graphweft_context_waiting_requests"}),
        Panel(
            title="Requests to the gateway",
            unit="reqps",
            queries=_rate("graphweft_gateway_requests_total", "path, status"),
        ),
        Panel(
            title="Time of the gateway",
            unit="s",
            queries=_quantiles("graphweft_gateway_request_duration_seconds", "path"),
        ),
    ),
    "servers": (
        Panel(
            title="Servers that answer",
            unit="bool",
            queries={"{{server}} of {{instance}}": "graphweft_connection_up"},
        ),
        Panel(
            title="Calls of the graph server",
            unit="s",
            queries=_quantiles("graphweft_db_query_duration_seconds", "kind"),
        ),
        Panel(
            title="Calls of the bus",
            unit="s",
            queries=_quantiles("graphweft_bus_operation_duration_seconds", "operation"),
        ),
        Panel(title="Memory of the bus", unit="percentunit", queries={"used": "max(graphweft_bus_memory_ratio)"}),
        Panel(title="Requests to models", unit="reqps", queries=_rate("graphweft_model_calls_total", "kind, result")),
        Panel(title="Tokens of models", unit="short", queries=_rate("graphweft_model_tokens_total", "kind, direction")),
        Panel(
            title="Events that jobs have before them",
            unit="short",
            queries={
                "{{group}}": "max by (group) (graphweft_backlog_events)",
            },
        ),
        Panel(
            title="Jobs that wait",
            unit="s",
            queries={
                "{{group}}": "max by (group) (graphweft_job_waiting_seconds)",
            },
        ),
        Panel(title="Archive is behind", unit="short", queries={"entries": "max(graphweft_archive_behind_events)"}),
        Panel(
            title="Event loop wakes too late",
            unit="s",
            queries=_quantiles("graphweft_event_loop_lag_seconds", "instance"),
        ),
        Panel(
            title="Processor",
            unit="percentunit",
            queries={
                "{{instance}}": "rate(graphweft_process_cpu_seconds_total[5m])",
            },
        ),
        Panel(title="Memory", unit="bytes", queries={"{{instance}}": "graphweft_process_resident_memory_bytes"}),
        Panel(title="Open files", unit="short", queries={"{{instance}}": "graphweft_process_open_files"}),
    ),
}


def dashboards() -> dict[str, str]:
    """Return the JSON of each dashboard by its name."""
    return {
        name: json.dumps(_dashboard(name, panels), indent=1, ensure_ascii=False) + "\n"
        for name, panels in DASHBOARDS.items()
    }


def _dashboard(name: str, panels: Sequence[Panel]) -> dict[str, Any]:
    return {
        "uid": f"graphweft-{name}",
        "title": f"graphweft: {name}",
        "tags": ["graphweft"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [_panel(number, each) for number, each in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {
            "x": number % 2 * _WIDTH,
            "y": number // 2 * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }
