"""Dashboards for Grafana, from lists of panels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tools.alerts import ALERTS

FOLDER: Final = "deploy/grafana"
_WIDTH: Final = 12
_HEIGHT: Final = 8
_SOURCE: Final[Mapping[str, str]] = {"type": "prometheus", "uid": "${source}"}
_CHOICES: Final = ("namespace", "job")
"""Labels that Prometheus gives to the processes of a deployment. Without the first, as with Compose, all are chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One graph over time. ``queries`` are by legend; ``unit`` is one of Grafana's."""

    title: str
    unit: str
    queries: Mapping[str, str]
    alert: str = ""
    """Name of an alert whose limit is a line in the graph."""
    text: str = ""
    """What its title does not say."""


def _quantiles(metric: str, by: str = "") -> dict[str, str]:
    labels = f"le, {by}" if by else "le"
    buckets = f"sum by ({labels}) (rate({metric}_bucket[2m]))"
    return {f"p{round(share * 100)}{_legend(by)}": f"histogram_quantile({share}, {buckets})" for share in (0.5, 0.99)}


def _rate(metric: str, by: str = "", where: str = "") -> dict[str, str]:
    """Return the query of something that happens all the time: how often in a second."""
    if not by:
        return {"per second": f"sum(rate({metric}{where}[2m]))"}
    return {_legend(by).strip(): f"sum by ({by}) (rate({metric}{where}[2m]))"}


def _times(metric: str, by: str = "", where: str = "", *, legend: str = "", most: int = 0) -> dict[str, str]:
    """Return the query of something that is to happen seldom: how often in 5 minutes; of the ``most`` frequent ones.

    A counter has no sample before its first count, so ``increase`` does not see that one, and none after the end of its
    process, which may have counted why it ended.
    """
    series = f"{metric}{where}"
    first = f"max_over_time({series}[5m]) unless present_over_time({series}[1h] offset 5m)"
    found = f"(({first}) or increase({series}[5m]))"
    found = f"sum by ({by}) {found}" if by else f"sum{found}"
    return {legend or _legend(by).strip(): f"topk({most}, {found}) > 0" if most else found}


def _legend(by: str) -> str:
    return "".join(f" {{{{{label.strip()}}}}}" for label in by.split(",")) if by else ""


_LACKS_SOMETHING: Final = '{outcome!="whole"}'

DASHBOARDS: Final[Mapping[str, Sequence[Panel]]] = {
    "events": (
        Panel(
            title="Events a second",
            unit="short",
            queries={
                "read": "sum(rate(graphweft_events_read_total[2m]))",
                "applied": "sum(rate(graphweft_events_applied_total[2m]))",
            },
        ),
        Panel(
            title="Time from the bus into the graph", unit="s", queries=_quantiles("graphweft_event_visible_seconds")
        ),
        Panel(
            title="Events that wait",
            unit="short",
            queries={"events": "sum(max by (partition) (graphweft_partition_lag_events))"},
            text="Empty while no mutation worker runs.",
            alert="GraphweftLag",
        ),
        Panel(
            title="Age of the oldest event that waits, of the 5 slowest partitions",
            unit="s",
            queries={
                "partition {{partition}}": "topk(5, max by (partition) (graphweft_oldest_unapplied_seconds)) > 0",
            },
            alert="GraphweftEventsWait",
        ),
        Panel(
            title="Partitions",
            unit="short",
            queries={
                "held by {{instance}}": "graphweft_partitions_owned",
                "held by nobody": "max(graphweft_partitions_unowned)",
                "with a fault": "max(graphweft_partition_faults)",
            },
        ),
        Panel(
            title="Apps that are behind",
            unit="short",
            queries={"{{reason}}": "sum by (reason) (graphweft_parked_apps)"},
        ),
        Panel(
            title="Mutations a second, of the 10 busiest rules",
            unit="short",
            queries={
                "{{workflow}} {{rule}}": "topk(10, sum by (workflow, rule) (rate(graphweft_rule_matches_total[2m])))",
            },
        ),
        Panel(title="Time of a batch", unit="s", queries=_quantiles("graphweft_batch_duration_seconds")),
        Panel(
            title="Events a second through the gateway",
            unit="short",
            queries={
                "received": "sum(rate(graphweft_events_received_total[2m]))",
                **_rate("graphweft_events_published_total", "result"),
            },
        ),
        Panel(
            title="Events that the gateway did not give to the bus",
            unit="short",
            queries={
                **_times(
                    "graphweft_events_published_total", "result", '{result!="sent"}', legend="{{result}} in 5 minutes"
                ),
                "wait in its buffer": "sum(graphweft_client_buffer_events)",
            },
        ),
    ),
    "failures": (
        Panel(title="Dead letters", unit="short", queries={"dead letters": "max(graphweft_dead_letters)"}),
        Panel(
            title="New dead letters, in 5 minutes",
            unit="short",
            queries=_times("graphweft_dead_letters_total", "reason"),
        ),
        Panel(
            title="Age of the oldest dead letter",
            unit="s",
            queries={"age": "max(graphweft_dead_letter_oldest_seconds)"},
        ),
        Panel(
            title="Events and mutations without effect, in 5 minutes",
            unit="short",
            queries=_times("graphweft_without_effect_total", "cause"),
        ),
        Panel(
            title="Warnings and errors in the logs, in 5 minutes",
            unit="short",
            queries=_times("graphweft_log_entries_total", "level, event", most=10),
        ),
        Panel(
            title="Quarantines, in 5 minutes",
            unit="short",
            queries=_times("graphweft_quarantines_total", legend="quarantines"),
        ),
        Panel(
            title="Left out by jobs, in 5 minutes",
            unit="short",
            queries=_times("graphweft_job_skipped_total", "group, reason"),
        ),
        Panel(
            title="Copies of events, in 5 minutes",
            unit="short",
            queries=_times("graphweft_duplicates_total", legend="copies"),
        ),
        Panel(
            title="Changes of leases, in 5 minutes",
            unit="short",
            queries=_times("graphweft_lease_changes_total", "change"),
        ),
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
        Panel(title="Requests a second", unit="reqps", queries=_rate("graphweft_context_requests_total", "outcome")),
        Panel(
            title="Requests without a whole context, in 5 minutes",
            unit="short",
            queries=_times("graphweft_context_requests_total", "outcome, reason", _LACKS_SOMETHING),
        ),
        Panel(title="Time", unit="s", queries=_quantiles("graphweft_context_duration_seconds")),
        Panel(
            title="Share of the budget",
            unit="percentunit",
            queries=_quantiles("graphweft_context_budget_used_ratio"),
            alert="GraphweftContextSlow",
        ),
        Panel(title="Waiting", unit="short", queries={"{{instance}}": "graphweft_context_waiting_requests"}),
        Panel(
            title="Taken over from a silent responder, in 5 minutes",
            unit="short",
            queries=_times("graphweft_context_taken_over_total", "result"),
        ),
        Panel(
            title="Queries of contexts a second, by the cache",
            unit="short",
            queries=_rate("graphweft_cache_requests_total", "result"),
        ),
        Panel(title="Tokens of a context", unit="short", queries=_quantiles("graphweft_context_tokens")),
        Panel(
            title="Requests to the gateway, a second",
            unit="reqps",
            queries=_rate("graphweft_gateway_requests_total", "path"),
        ),
        Panel(
            title="Requests that the gateway refused or failed, in 5 minutes",
            unit="short",
            queries=_times("graphweft_gateway_requests_total", "path, status", '{status=~"4..|5.."}'),
        ),
        Panel(
            title="Time of the gateway",
            unit="s",
            queries=_quantiles("graphweft_gateway_request_duration_seconds", "path"),
        ),
    ),
    "servers": (
        Panel(
            title="Processes that a server does not answer",
            unit="short",
            queries={"{{server}}": "sum by (server) (1 - min_over_time(graphweft_connection_up[2m]))"},
            text="Of the processes that run.",
        ),
        Panel(
            title="Roles that run",
            unit="short",
            queries={
                "{{role}}": "sum by (role) (graphweft_role_running) "
                "or 0 * sum by (role) (max_over_time(graphweft_role_running[1h]))",
            },
            text="0: it ran in the last hour. While no mutation worker runs, nobody says what waits.",
        ),
        Panel(
            title="Time of a call of the graph server",
            unit="s",
            queries=_quantiles("graphweft_db_query_duration_seconds", "kind"),
        ),
        Panel(
            title="Time of a call of the bus",
            unit="s",
            queries=_quantiles("graphweft_bus_operation_duration_seconds", "operation"),
        ),
        Panel(
            title="Memory of the bus",
            unit="percentunit",
            queries={"used": "max(graphweft_bus_memory_ratio)"},
            text="Empty if the server has no limit.",
            alert="GraphweftBusMemory",
        ),
        Panel(
            title="The archive, in entries",
            unit="short",
            queries={
                "behind": "max(graphweft_archive_behind_events)",
                "lost": "max(graphweft_archive_lost_events)",
            },
            alert="GraphweftArchiveBehind",
        ),
        Panel(
            title="Requests to models, a second",
            unit="reqps",
            queries=_rate("graphweft_model_calls_total", "kind, result"),
        ),
        Panel(
            title="Tokens of models, a second",
            unit="short",
            queries=_rate("graphweft_model_tokens_total", "kind, direction"),
        ),
        Panel(
            title="Events that jobs have before them",
            unit="short",
            queries={"{{group}}": "max by (group) (graphweft_backlog_events)"},
            alert="GraphweftBacklog",
        ),
        Panel(
            title="Jobs that wait, since",
            unit="s",
            queries={"{{group}}": "max by (group) (graphweft_job_waiting_seconds)"},
            alert="GraphweftJobWaits",
        ),
        Panel(
            title="Event loop wakes too late, by",
            unit="s",
            queries=_quantiles("graphweft_event_loop_lag_seconds", "instance"),
            alert="GraphweftLoopHeld",
        ),
        Panel(
            title="Processor, in cores",
            unit="short",
            queries={"{{instance}}": "rate(graphweft_process_cpu_seconds_total[2m])"},
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
            "list": [
                {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                *map(_choice, _CHOICES),
            ]
        },
        "panels": [_panel(number, each) for number, each in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": " ".join(
            filter(None, (panel.text, f"The line is the limit of the alert {panel.alert}." if panel.alert else ""))
        ),
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % 2 * _WIDTH,
            "y": number // 2 * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **_limit(panel.alert)}, "overrides": []},
        # Hidden behind a line of others, a failure has its number in the table.
        "options": {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": _SOURCE, "expr": _chosen(query), "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _choice(label: str) -> dict[str, Any]:
    """Return a choice of deployments at the top: two in one Prometheus would be added up."""
    asked = f"label_values(graphweft_build_info, {label})"
    return {
        "name": label, "label": label.capitalize(), "type": "query", "datasource": _SOURCE,
        "query": asked, "definition": asked, "refresh": 2, "sort": 1,
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _chosen(query: str) -> str:
    """Return a query for the chosen deployments."""
    chosen = ", ".join(f'{label}=~"${label}"' for label in _CHOICES)

    def selector(found: re.Match[str]) -> str:
        more = f", {found[2]}" if found[2] else ""
        return f"{found[1]}{{{chosen}{more}}}"

    return re.sub(r"(graphweft_\w+)(?:\{([^}]*)\})?", selector, query)


def _limit(name: str) -> dict[str, Any]:
    """Return the line at the limit of an alert, above which the graph is red."""
    if not name:
        return {}
    [query] = [alert.query for alert in ALERTS if alert.name == name]
    limit = float(query.rpartition(" > ")[2])
    return {
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": "transparent", "value": None}, {"color": "red", "value": limit}],
        },
        "custom": {"thresholdsStyle": {"mode": "dashed"}},
    }
