"""Each alert fires for the failure that it is about and is silent for a healthy deployment, as Prometheus "
"evaluates it."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.services.charts import ROOT, example, of_kind
from tests.services.go_tools import tool
from tools.alerts import ALERTS, SITE
from tools.dashboards import DASHBOARDS

from graphweft_workers.telemetry.metrics import METRICS, HistogramMetric

RULES: Final = ROOT / "deploy/prometheus/graphweft-alerts.yaml"
type Series = Mapping[str, str]


def histogram(name: str, instance: str, seen: Mapping[float, str]) -> Series:
    """Return the series of a histogram, with its own bounds, that saw values as often as notations of promtool say."""
    [metric] = [each for each in METRICS if each.name == name]
    assert isinstance(metric, HistogramMetric)
    found = {}
    for bound in (*metric.bounds, math.inf):
        below = [samples(notation) for value, notation in seen.items() if value <= bound] or [[0] * SAMPLES]
        counts = " ".join(str(sum(each)) for each in zip(*below, strict=True))
        found[f'{name}_bucket{{le="{"+Inf" if bound == math.inf else bound}", instance="{instance}"}}'] = counts
    return found


def samples(notation: str) -> list[int]:
    """Return the values that a notation of promtool stands for: ``0+5x30`` are 31 of them."""
    values: list[int] = []
    for part in notation.split():
        first, step, times = (int(number or 0) for number in re.fullmatch(r"(\d+)(?:\+(\d+))?x(\d+)", part).groups())
        values += [first + step * each for each in range(times + 1)]
    return (values + [values[-1]] * SAMPLES)[:SAMPLES]


SAMPLES: Final = 121

HEALTHY: Final[Series] = {
    'graphweft_build_info{instance="w1"}': "1x120",
    'graphweft_connection_up{server="bus", instance="w1"}': "1x120",
    'graphweft_connection_up{server="graph", instance="w1"}': "1x120",
    'graphweft_connection_up{server="bus", instance="r1"}': "1x120",
    'graphweft_role_running{role="mutation", instance="w1"}': "0x5 1x115",
    'graphweft_role_running{role="injection", instance="r1"}': "1x120",
    'graphweft_role_running{role="archive", instance="a1"}': "1x120",
    'graphweft_role_running{role="memory", instance="m1"}': "1x120",
    # Another process takes its place, and the console is closed.
    'graphweft_role_running{role="gateway", instance="g1"}': "1x40 _x80",
    'graphweft_role_running{role="gateway", instance="g2"}': "_x43 1x77",
    'graphweft_role_running{role="console", instance="c1"}': "1x50 _x70",
    'graphweft_oldest_unapplied_seconds{partition="0", instance="w1"}': "0x20 90x2 0x98",
    'graphweft_oldest_unapplied_seconds{partition="1", instance="w1"}': "2x120",
    'graphweft_partition_lag_events{partition="0", instance="w1"}': "0x20 30000x10 0x90",
    'graphweft_partition_lag_events{partition="1", instance="w1"}': "15000x120",
    # What nobody holds is in the metrics of each worker.
    'graphweft_partition_lag_events{partition="1", instance="w2"}': "15000x120",
    'graphweft_partitions_unowned{instance="w1"}': "0x20 3x1 0x99",
    'graphweft_partition_faults{instance="w1"}': "0x120",
    'graphweft_parked_apps{reason="slow", instance="w1"}': "0x20 2x8 0x92",
    'graphweft_parked_apps{reason="needs_rebuild", instance="w1"}': "0x120",
    'graphweft_dead_letters_total{reason="no_rules", instance="w1"}': "7x120",
    'graphweft_quarantines_total{instance="w1"}': "1x120",
    'graphweft_events_read_total{instance="w1"}': "0+6000x120",
    'graphweft_without_effect_total{cause="skipped", instance="w1"}': "0+60x120",
    'graphweft_context_requests_total{outcome="whole", reason="", instance="r1"}': "0+600x120",
    'graphweft_context_requests_total{outcome="partial", reason="timeout", instance="r1"}': "0+1x120",
    'graphweft_context_requests_total{outcome="empty", reason="no_rules", instance="r1"}': "0+600x120",
    'graphweft_context_requests_total{outcome="refused", reason="invalid_request", instance="r1"}': "0+60x120",
    **histogram("graphweft_context_budget_used_ratio", "r1", {0.3: "0+599x120", 0.95: "0+1x120"}),
    'graphweft_shed_total{instance="r1"}': "3x120",
    'graphweft_bus_memory_ratio{instance="w1"}': "0.4x20 0.9x3 0.5x97",
    'graphweft_archive_behind_events{instance="w1"}': "500x120",
    'graphweft_archive_lost_events{instance="w1"}': "0x120",
    'graphweft_rules_lost{instance="w1"}': "0x120",
    **histogram("graphweft_event_loop_lag_seconds", "w1", {0.002: "0+119x120", 0.2: "0+1x120"}),
    'graphweft_model_calls_total{kind="chat", result="ok", instance="m1"}': "0+60x120",
    'graphweft_model_calls_total{kind="chat", result="unavailable", instance="m1"}': "0+6x120",
    'graphweft_backlog_events{group="episodes", instance="m1"}': "200x120",
    'graphweft_job_waiting_seconds{group="episodes", instance="m1"}': "0x20 60+60x4 0x95",
    'graphweft_job_skipped_total{group="episodes", reason="text_refused", instance="m1"}': "0+1x120",
    'graphweft_job_skipped_total{group="episodes", reason="events_lost", instance="m1"}': "3x120",
    'graphweft_events_published_total{result="sent", instance="g1"}': "0+600x120",
    'graphweft_events_published_total{result="dropped", instance="g1"}': "5x120",
    'graphweft_metrics_looks_failed_total{instance="w1"}': "2x120",
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Series in place of the healthy ones, from minute 30 on. ``gone`` begins the series that are not there then."""

    alert: str
    series: Series = field(default_factory=dict)
    gone: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str
    minute: int = 60


FAILURES: Final[Sequence[Failure]] = (
    Failure(
        alert="GraphweftServerUnavailable", labels={"server": "graph"},
        series={'graphweft_connection_up{server="graph", instance="w1"}': "1x30 0x90"},
        summary="A role does not reach the server of the graph.",
    ),
    Failure(
        alert="GraphweftRoleStarts", labels={"role": "mutation", "instance": "w1"},
        series={'graphweft_role_running{role="mutation", instance="w1"}': "1x30 0x90"},
        summary="The role mutation has been starting for 10 minutes.",
    ),
    Failure(
        alert="GraphweftEventsWait",
        series={'graphweft_oldest_unapplied_seconds{partition="1", instance="w1"}': "2x30 60+60x90"},
        summary="An event has waited for a minute or more to be applied.",
    ),
    Failure(
        alert="GraphweftLag",
        series={
            'graphweft_partition_lag_events{partition="0", instance="w1"}': "0x30 6000x90",
            'graphweft_partition_lag_events{partition="1", instance="w1"}': "15000x120",
        },
        summary="Workers have been behind by 20,000 events for 15 minutes.",
    ),
    Failure(
        alert="GraphweftNoWorker", labels={"role": "mutation"}, gone='graphweft_role_running{role="mutation"',
        summary="No mutation worker is scraped: no event is applied.",
    ),
    *(
        Failure(
            alert="GraphweftRoleGone", labels={"role": role}, gone=f'graphweft_role_running{{role="{role}"',
            summary=f"The role {role} is not scraped any more.",
        )
        for role in ("injection", "archive", "memory", "gateway")
    ),
    Failure(
        alert="GraphweftPartitionsUnowned",
        series={'graphweft_partitions_unowned{instance="w1"}': "0x30 3x90"},
        summary="No worker holds 3 partitions: their events are not applied.",
    ),
    Failure(
        alert="GraphweftPartitionFault",
        series={'graphweft_partition_faults{instance="w1"}': "0x30 1x90"},
        summary="A partition takes no events, or gives them wrong times.",
    ),
    Failure(
        alert="GraphweftAppParked", labels={"reason": "slow"},
        series={'graphweft_parked_apps{reason="slow", instance="w1"}': "0x30 1x90"},
        summary="An app has been behind the others for 10 minutes: slow.",
    ),
    Failure(
        alert="GraphweftAppWaitsForYou", labels={"reason": "needs_rebuild"},
        series={'graphweft_parked_apps{reason="needs_rebuild", instance="w1"}': "0x30 1x90"},
        summary="An app waits for an operator: needs_rebuild.",
    ),
    Failure(
        alert="GraphweftAppWaitsForYou", labels={"reason": "other_graph"},
        series={'graphweft_parked_apps{reason="other_graph", instance="w1"}': "0x30 1x90"},
        summary="An app waits for an operator: other_graph.",
    ),
    Failure(
        alert="GraphweftAppWaitsForYou", labels={"reason": "rules_lost"},
        series={'graphweft_parked_apps{reason="rules_lost", instance="w2"}': "_x30 1x90"},
        summary="An app waits for an operator: rules_lost.",
    ),
    Failure(
        alert="GraphweftDeadLetters", labels={"reason": "no_rules"}, minute=35,
        series={'graphweft_dead_letters_total{reason="no_rules", instance="w1"}': "7x30 8x90"},
        summary="Events had no effect in the last 15 minutes: no_rules.",
    ),
    Failure(  # the first one of this reason: its counter begins with 1
        alert="GraphweftDeadLetters", labels={"reason": "query_failed"}, minute=35,
        series={'graphweft_dead_letters_total{reason="query_failed", instance="w1"}': "_x30 1x90"},
        summary="Events had no effect in the last 15 minutes: query_failed.",
    ),
    Failure(
        alert="GraphweftQuarantine", minute=35,
        series={'graphweft_quarantines_total{instance="w1"}': "_x30 1x90"},
        summary="A mutation was switched off because its rows failed.",
    ),
    Failure(
        alert="GraphweftWithoutEffect",
        series={'graphweft_without_effect_total{cause="skipped", instance="w1"}': "0x30 0+600x90"},
        summary="More than 5 % of events lack something that a rule needs.",
    ),
    Failure(
        alert="GraphweftContextDegraded",
        series={'graphweft_context_requests_total{outcome="partial", reason="timeout", instance="r1"}': "0x30 0+12x90"},
        summary="More than 1 % of contexts lack something.",
    ),
    Failure(
        alert="GraphweftContextSlow",
        series=histogram("graphweft_context_budget_used_ratio", "r1", {0.3: "0+580x120", 0.95: "0x30 0+20x90"}),
        summary="One of a hundred contexts takes more than 90 % of its budget.",
    ),
    Failure(
        alert="GraphweftContextShed",
        series={'graphweft_shed_total{instance="r1"}': "3x30 3+1x90"},
        summary="Responders refuse context requests because too many are there.",
    ),
    Failure(
        alert="GraphweftBusMemory",
        series={'graphweft_bus_memory_ratio{instance="w1"}': "0.4x30 0.85x90"},
        summary="The server of the bus uses 85% of its memory limit.",
    ),
    Failure(
        alert="GraphweftArchiveBehind",
        series={'graphweft_archive_behind_events{instance="w1"}': "500x30 200000x90"},
        summary="The archive has lacked 100,000 entries for 15 minutes.",
    ),
    Failure(
        alert="GraphweftArchiveLost", minute=31,
        series={'graphweft_archive_lost_events{instance="w1"}': "0x30 4x90"},
        summary="Entries were trimmed before they were archived.",
    ),
    Failure(
        alert="GraphweftRulesLost",
        series={'graphweft_rules_lost{instance="w1"}': "0x30 1x90"},
        summary="The bus has lost an active rule set.",
    ),
    Failure(
        alert="GraphweftLoopHeld", labels={"instance": "w1"},
        series=histogram("graphweft_event_loop_lag_seconds", "w1", {0.002: "0+110x120", 0.7: "0x30 0+10x90"}),
        summary="The event loop of a process is held for half a second again and again.",
    ),
    Failure(
        alert="GraphweftModelFails", labels={"kind": "chat"},
        series={'graphweft_model_calls_total{kind="chat", result="unavailable", instance="m1"}': "0x30 0+30x90"},
        summary="More than 20 % of the requests to models (chat) fail.",
    ),
    Failure(
        alert="GraphweftJobWaits", labels={"group": "episodes"},
        series={'graphweft_job_waiting_seconds{group="episodes", instance="m1"}': "0x30 60+60x90"},
        summary="The job episodes has waited for more than 5 minutes for what it needs.",
    ),
    Failure(
        alert="GraphweftJobResultsLost", labels={"group": "episodes", "reason": "events_lost"}, minute=32,
        series={'graphweft_job_skipped_total{group="episodes", reason="events_lost", instance="m1"}': "3x30 5x90"},
        summary="The job episodes lost results: events_lost.",
    ),
    Failure(
        alert="GraphweftBacklog", labels={"group": "episodes"},
        series={'graphweft_backlog_events{group="episodes", instance="m1"}': "200x30 20000x90"},
        summary="The job episodes has been behind by 10,000 events for 15 minutes.",
    ),
    Failure(
        alert="GraphweftEventsDropped", labels={"result": "rejected"}, minute=32,
        series={'graphweft_events_published_total{result="rejected", instance="g1"}': "_x30 2x90"},
        summary="The gateway did not give events to the bus: rejected.",
    ),
    Failure(
        alert="GraphweftMetricsIncomplete",
        series={'graphweft_metrics_looks_failed_total{instance="w1"}': "2x30 2+1x90"},
        summary="The bus does not say in time what metrics ask for.",
    ),
)  # fmt: skip


def promtool(folder: Path, tests: Sequence[Mapping[str, Any]]) -> str:
    """Return what promtool finds wrong: nothing if each test holds. Samples are a minute apart."""
    file = folder / "tests.yaml"
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m"} | dict(each) for each in tests],
    }
    file.write_text(json.dumps(document), "utf-8")
    done = subprocess.run([tool("promtool"), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def given(series: Series) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def expected(alert: str, minute: int, *found: Mapping[str, Any]) -> dict[str, Any]:
    return {"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": list(found)}


def test_no_alert_is_about_a_healthy_deployment(tmp_path: Path) -> None:
    """Also while something is late for a moment: a lease that changes hands, a burst, a role that starts."""
    checks = [expected(alert.name, minute) for alert in ALERTS for minute in range(1, 120, 7)]
    assert promtool(tmp_path, [{"input_series": given(HEALTHY), "alert_rule_test": checks}]) == ""


@pytest.mark.parametrize("failure", FAILURES, ids=lambda each: f"{each.alert}-{'-'.join(each.labels.values())}")
def test_an_alert_fires_for_its_failure(failure: Failure, tmp_path: Path) -> None:
    [alert] = [each for each in ALERTS if each.name == failure.alert]
    fires = {
        "exp_labels": {"severity": alert.severity, **failure.labels},
        "exp_annotations": {"summary": failure.summary, "runbook_url": f"{SITE}/alerts.html#{alert.name.lower()}"},
    }
    series = {
        name: re.sub(r"x\d+.*", "x30 _x90", values) if failure.gone and name.startswith(failure.gone) else values
        for name, values in (HEALTHY | failure.series).items()
    }
    checks = [expected(alert.name, 29), expected(alert.name, failure.minute, fires)]
    if alert.minutes > 1:
        checks.append(expected(alert.name, 30 + alert.minutes - 1))  # it may be over in a moment
    assert promtool(tmp_path, [{"input_series": given(series), "alert_rule_test": checks}]) == ""


def test_each_alert_has_its_failure() -> None:
    assert {each.alert for each in FAILURES} == {each.name for each in ALERTS}
    assert len(ALERTS) >= 24


def test_a_role_that_was_removed_is_forgotten_after_three_days(tmp_path: Path) -> None:
    series = {
        'graphweft_role_running{role="memory", instance="m1"}': "1x30 _x4400",
        'graphweft_role_running{role="mutation", instance="w1"}': "1x4430",
    }
    [query] = [each.query for each in ALERTS if each.name == "GraphweftRoleGone"]
    checks = [
        {"expr": query, "eval_time": "71h", "exp_samples": [{"labels": '{role="memory"}', "value": 1}]},
        {"expr": query, "eval_time": "73h", "exp_samples": []},
    ]
    assert promtool(tmp_path, [{"input_series": given(series), "promql_expr_test": checks}]) == ""


def test_a_dead_letter_is_no_news_after_its_window(tmp_path: Path) -> None:
    series = HEALTHY | {'graphweft_dead_letters_total{reason="query_failed", instance="w1"}': "_x30 1x90"}
    checks = [expected("GraphweftDeadLetters", 50)]
    assert promtool(tmp_path, [{"input_series": given(series), "alert_rule_test": checks}]) == ""


@pytest.mark.parametrize("gap", ["1x10 _x8 1x100", "1x10 _x90 1x30", "_x20 1x100"], ids=["short", "long", "start"])
def test_counters_of_old_are_no_news_when_scraping_goes_on(gap: str, tmp_path: Path) -> None:
    """Prometheus was installed later, or did not reach anything for a while."""
    series = {
        name: gap.replace("1x", f"{samples(values)[0]}x") if "_total" in name and "+" not in values else gap
        for name, values in HEALTHY.items()
        if re.match("graphweft_(build_info|dead_letters|quarantines|events_published)", name) and "+" not in values
    }
    assert len(series) == 4
    names = ("GraphweftDeadLetters", "GraphweftQuarantine", "GraphweftEventsDropped")
    checks = [expected(name, minute) for name in names for minute in range(0, 120, 3)]
    assert promtool(tmp_path, [{"input_series": given(series), "alert_rule_test": checks}]) == ""


def test_a_dead_letter_of_a_new_worker_is_news(tmp_path: Path) -> None:
    series = HEALTHY | {
        'graphweft_build_info{instance="w9"}': "_x30 1x90",
        'graphweft_dead_letters_total{reason="no_rules", instance="w9"}': "_x31 1x90",
    }
    sample = {"labels": '{reason="no_rules"}', "value": 1}
    query = next(each.query for each in ALERTS if each.name == "GraphweftDeadLetters")
    check = {"expr": query, "eval_time": "35m", "exp_samples": [sample]}
    assert promtool(tmp_path, [{"input_series": given(series), "promql_expr_test": [check]}]) == ""


def test_promtool_sees_a_wrong_expectation(tmp_path: Path) -> None:
    checks = [expected("GraphweftLag", 60, {"exp_labels": {"severity": "warning"}})]
    assert "GraphweftLag" in promtool(tmp_path, [{"input_series": given(HEALTHY), "alert_rule_test": checks}])


def test_the_lag_that_scales_workers_counts_each_partition_once(tmp_path: Path) -> None:
    [scaled] = of_kind(example("redis-falkordb"), "ScaledObject").values()
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    ours, theirs = 'namespace="prod", pod="gw-graphweft-worker-a"', 'namespace="prod", pod="gw-graphweft-worker-b"'
    series = {
        f'graphweft_partition_lag_events{{partition="0", {ours}}}': "100x5",
        f'graphweft_partition_lag_events{{partition="1", {theirs}}}': "7x5",
        # Nobody holds partition 63: both say its lag, one of them a moment later.
        f'graphweft_partition_lag_events{{partition="63", {ours}}}': "40x5",
        f'graphweft_partition_lag_events{{partition="63", {theirs}}}': "39x5",
        'graphweft_partition_lag_events{partition="0", namespace="other", pod="gw-graphweft-worker-a"}': "9000x5",
        'graphweft_partition_lag_events{partition="0", namespace="prod", pod="another-worker-a"}': "9000x5",
    }
    sample = {"expr": query, "eval_time": "2m", "exp_samples": [{"labels": "{}", "value": 147}]}
    nothing = {"expr": query, "eval_time": "30m", "exp_samples": []}  # KEDA then keeps what runs
    assert promtool(tmp_path, [{"input_series": given(series), "promql_expr_test": [sample, nothing]}]) == ""


def test_a_dashboard_shows_the_first_dead_letter_for_5_minutes(tmp_path: Path) -> None:
    [panel] = [each for each in DASHBOARDS["failures"] if each.title == "New dead letters, in 5 minutes"]
    [query] = panel.queries.values()
    series = {
        'graphweft_dead_letters_total{reason="no_rules", instance="w1"}': "_x20 3x30",
        'graphweft_dead_letters_total{reason="no_rules", instance="w2"}': "7x60",
        # It ends a minute after its first ones.
        'graphweft_dead_letters_total{reason="no_rules", instance="w3"}': "_x40 2x1 _x20",
    }
    checks = [
        {"expr": query, "eval_time": time, "exp_samples": [{"labels": '{reason="no_rules"}', "value": value}]}
        for time, value in {"19m": 0, "22m": 3, "30m": 0, "43m": 2, "55m": 0}.items()
    ]
    assert promtool(tmp_path, [{"input_series": given(series), "promql_expr_test": checks}]) == ""


def test_each_query_of_dashboards_is_promql_about_metrics_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs/metrics.md").read_text("utf-8")
    known = set(re.findall(r"(?m)^\| `(graphweft_\w+)` \|", page))
    assert len(known) > 50
    queries = [
        target["expr"]
        for file in sorted((ROOT / "deploy/grafana").glob("*.json"))
        for panel in json.loads(file.read_text("utf-8"))["panels"]
        for target in panel["targets"]
    ]
    assert len(queries) > 30
    for query in queries:
        for name in re.findall(r"graphweft_\w+", query):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known, query
    records = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": records}]}), "utf-8")
    done = subprocess.run([tool("promtool"), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
