"""Alerts and dashboards ask for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from tools.alerts import ALERTS, ALERTS_FILE
from tools.dashboards import DASHBOARDS

from graphweft_workers.telemetry.metrics import APP, METRICS, HistogramMetric

ROOT = Path(__file__).parents[2]
TARGET_LABELS = {"instance", "le"}
"""Labels that Prometheus gives to what it scrapes, and those of a histogram."""


def queries() -> Iterator[str]:
    yield from (alert.query for alert in ALERTS)
    yield from (query for panels in DASHBOARDS.values() for panel in panels for query in panel.queries.values())


def test_each_query_is_about_metrics_of_the_list_with_their_labels() -> None:
    known = {metric.name: metric for metric in METRICS}
    for query in queries():
        names = set(re.findall(r"graphweft_\w+", query))
        labels: set[str] = set(TARGET_LABELS)
        assert names
        for name in names:
            metric = known[name.removesuffix("_bucket")]
            assert name.endswith("_bucket") == isinstance(metric, HistogramMetric), query
            labels |= {*metric.labels, *([APP] if metric.by_app else [])}
        used = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        used |= {match for group in re.findall(r"\{([^}]*)\}", query) for match in re.findall(r"(\w+)(?:=|!)", group)}
        assert used <= labels, query
        assert query.count("(") == query.count(")")


def test_the_file_of_alerts_has_each_with_its_section_on_the_page() -> None:
    [group] = yaml.safe_load((ROOT / ALERTS_FILE).read_text("utf-8"))["groups"]
    page = (ROOT / "docs/alerts.md").read_text("utf-8")
    assert len(group["rules"]) == len({alert.name for alert in ALERTS}) >= 12
    for rule in group["rules"]:
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert address == "https://graphweft.example/alerts.html", "absolute, or no alert leads there"
        assert f"\n## {rule['alert']}\n" in page
        assert anchor == rule["alert"].lower()
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["for"].endswith("m")


def test_the_dashboards_are_files_for_grafana() -> None:
    for name, panels in DASHBOARDS.items():
        found = json.loads((ROOT / f"deploy/grafana/{name}.json").read_text("utf-8"))
        assert [panel["title"] for panel in found["panels"]] == [panel.title for panel in panels]
        for target in (target for panel in found["panels"] for target in panel["targets"]):
            chosen = target["expr"].count('{namespace=~"$namespace", job=~"$job"')
            assert chosen == len(re.findall(r"graphweft_\w+", target["expr"])) > 0, "else two deployments are added up"
        places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in found["panels"]]
        assert len(set(places)) == len(places)
