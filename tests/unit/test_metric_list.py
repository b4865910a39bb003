"""The list of metrics, and what collects them: names, bounds of labels, the text, and what it costs while it is off."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.services.fixtures import Logs, events_of
from tests.services.models import Failure, ModelServer
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import BusUnavailable, InvalidSettings
from graphweft_workers.processes.health import healthy
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.logs import set_up_logs
from graphweft_workers.support.model_endpoint import Endpoint, EndpointRefused, EndpointUnavailable
from graphweft_workers.telemetry import metrics
from graphweft_workers.telemetry.meters import MeterOptions, ProcessMeter, metering
from graphweft_workers.telemetry.metrics import LOG_ENTRIES
from graphweft_workers.telemetry.metrics_looks import LOOK_S, look, looking

ROOT = Path(__file__).parents[2]
WORKERS = ROOT / "workers/graphweft_workers"
SUFFIXES = ("_total", "_seconds", "_bytes", "_ratio", "_events", "_tokens", "_info", "_requests")


@pytest.fixture
def meter() -> Iterator[ProcessMeter]:
    with metering(MeterOptions()) as opened:
        yield opened


def samples(meter: ProcessMeter) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the values in the text, by name and labels, as Prometheus' own parser reads them."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(meter.text())
        for sample in family.samples
    }


def value(meter: ProcessMeter, name: str, **labels: str) -> float | None:
    return samples(meter).get((name, tuple(sorted(labels.items()))))


def test_each_metric_has_a_name_of_its_own_in_the_form_of_prometheus() -> None:
    names = [metric.name for metric in metrics.METRICS]
    assert len(names) == len(set(names)) >= 35
    for metric in metrics.METRICS:
        assert re.fullmatch(r"graphweft_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.text.endswith(".")


def test_each_label_is_explained_and_each_explained_one_is_used() -> None:
    used = {label for metric in metrics.METRICS for label in metric.labels}
    used |= {metrics.APP} if any(metric.by_app for metric in metrics.METRICS) else set()
    assert used <= metrics.LABELS.keys()


def test_each_metric_of_the_module_is_in_the_list_and_is_counted_somewhere() -> None:
    made = {name: value for name, value in vars(metrics).items() if isinstance(value, metrics.Metric)}
    assert set(made.values()) == set(metrics.METRICS)
    code = "\n".join(path.read_text("utf-8") for path in WORKERS.rglob("*.py") if path.name != "metrics.py")
    code += (WORKERS / "processes/metrics.py").read_text("utf-8")
    assert [name for name in made if not re.search(rf"\b{name}\b", code)] == []


def test_without_a_meter_nothing_is_counted_and_no_sdk_is_needed() -> None:
    for metric in metrics.METRICS:
        if isinstance(metric, metrics.CountedMetric):
            assert metric.sink is None
    metrics.EVENTS_READ.add(3)
    metrics.BATCH_EVENTS.record(3)
    with metrics.BUS_DURATION.timed("commit"):
        pass
    text = (WORKERS / "telemetry/metrics.py").read_text("utf-8")
    text += (WORKERS / "telemetry/metrics_looks.py").read_text("utf-8")
    assert "opentelemetry" not in text.replace("OpenTelemetry", "")


@pytest.mark.usefixtures("beats")
async def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("graphweft_workers.telemetry.meters")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics.export", None)
    url = f"unix://{tmp_path}/nowhere.sock"
    settings = Settings.load(bus_url=url, graph_url=url, metrics=True, probe_address="127.0.0.1:0")
    with pytest.raises(InvalidSettings, match=r"GRAPHWEFT_METRICS needs .*pip install 'graphweft\[telemetry\]'"):
        async with healthy("mutation", settings):
            pass


def test_a_counter_a_gauge_and_a_histogram_are_in_the_text(meter: ProcessMeter) -> None:
    metrics.EVENTS_READ.add(3)
    metrics.EVENTS_READ.add(4)
    metrics.DB_DURATION.record(0.003, "write")
    metrics.DB_DURATION.record(99, "write")
    with metrics.DEAD_LETTERS.read_from(lambda: {(): 5}):
        assert value(meter, "graphweft_dead_letters") == 5
    assert value(meter, "graphweft_dead_letters") is None
    assert value(meter, "graphweft_events_read_total") == 7
    name = "graphweft_db_query_duration_seconds"
    assert value(meter, f"{name}_bucket", kind="write", le="0.0025") == 0
    assert value(meter, f"{name}_bucket", kind="write", le="0.005") == 1
    assert value(meter, f"{name}_bucket", kind="write", le="+Inf") == 2
    assert value(meter, f"{name}_count", kind="write") == 2
    assert value(meter, f"{name}_sum", kind="write") == pytest.approx(99.003)


def test_the_text_keeps_any_character_of_a_label(meter: ProcessMeter) -> None:
    strange = 'a "rule" with \\ and\nnext line, {x="y"} é'
    metrics.RULE_MATCHES.add(1, "Support", strange)
    assert value(meter, "graphweft_rule_matches_total", workflow="Support", rule=strange) == 1


def test_the_text_has_a_type_and_a_sentence_for_each_metric(meter: ProcessMeter) -> None:
    metrics.EVENTS_READ.add()
    found = {family.name: family for family in text_string_to_metric_families(meter.text())}
    assert found["graphweft_events_read"].type == "counter"
    assert found["graphweft_events_read"].documentation == metrics.EVENTS_READ.text
    assert found["graphweft_build_info"].type == "gauge"


def test_more_labels_than_the_limit_count_together(meter: ProcessMeter) -> None:
    for number in range(metrics.RULE_MATCHES.limit + 50):
        metrics.RULE_MATCHES.add(1, "Support", f"rule-{number}")
    found = [(labels, number) for (name, labels), number in samples(meter).items() if "rule_matches" in name]
    assert len(found) == metrics.RULE_MATCHES.limit + 1
    assert (tuple({"rule": "other", "workflow": "Support"}.items()), 50.0) in found


def test_a_workflow_with_many_rules_takes_no_place_of_others(meter: ProcessMeter) -> None:
    name, limit = "graphweft_rule_matches_total", metrics.RULE_MATCHES.limit
    for _ in range(2):
        for number in range(limit + 100):
            metrics.RULE_MATCHES.add(1, "Greedy", f"rule-{number}")
        for workflow, rule in product(("Support", "Sales"), ("one", "two", "three")):
            metrics.RULE_MATCHES.add(1, workflow, rule)
    for workflow, rule in product(("Support", "Sales"), ("one", "two", "three")):
        assert value(meter, name, workflow=workflow, rule=rule) == 2
    assert value(meter, name, workflow="Greedy", rule="rule-0") == 2
    greedy = [number for (_, labels), number in samples(meter).items() if ("workflow", "Greedy") in labels]
    assert sum(greedy) == 2 * (limit + 100)  # what gave its place away is counted
    assert len(greedy) == limit - 6 + 1


def test_many_workflows_are_bounded_and_each_early_one_keeps_a_place(meter: ProcessMeter) -> None:
    limit = metrics.RULE_MATCHES.limit
    for rule, number in product(("one", "two"), range(limit + 30)):
        metrics.RULE_MATCHES.add(1, f"workflow-{number}", rule)
    found = {labels: number for (name, labels), number in samples(meter).items() if "rule_matches" in name}
    assert len(found) <= 2 * limit + 1
    assert all((("rule", "one"), ("workflow", f"workflow-{number}")) in found for number in range(limit))
    assert sum(found.values()) == 2 * (limit + 30)


def test_what_is_counted_for_no_workflow_is_bounded_and_kept(meter: ProcessMeter) -> None:
    limit = metrics.RULE_MATCHES.limit
    for number in range(2 * limit):
        metrics.RULE_MATCHES.add(1, "other", f"rule-{number}")
        metrics.RULE_MATCHES.add(1, f"workflow-{number % 9}", "other")
    found = {labels: number for (name, labels), number in samples(meter).items() if "rule_matches" in name}
    assert len(found) <= limit + 2
    assert sum(found.values()) == 4 * limit


def test_each_app_has_places_of_its_own() -> None:
    with metering(MeterOptions(apps=frozenset({"shop", "greedy"}))) as meter:
        for number in range(5 * metrics.DEAD_LETTERS_WRITTEN.limit):
            metrics.DEAD_LETTERS_WRITTEN.add(1, f"reason-{number}", app="greedy")
        metrics.DEAD_LETTERS_WRITTEN.add(1, "invalid", app="shop")
        assert value(meter, "graphweft_dead_letters_total", app="shop", reason="invalid") == 1


def test_an_observed_metric_takes_no_more_labels_than_its_limit(meter: ProcessMeter) -> None:
    many = {(str(number),): 1.0 for number in range(1_000)}
    with metrics.PARTITION_LAG.read_from(lambda: many):
        found = [name for name, _ in samples(meter) if name == "graphweft_partition_lag_events"]
    assert len(found) == metrics.PARTITION_LAG.limit


def test_without_a_list_no_app_is_named(meter: ProcessMeter) -> None:
    metrics.EVENTS_APPLIED.add(1, app="shop")
    assert "shop" not in meter.text()
    assert value(meter, "graphweft_events_applied_total") == 1


def test_only_listed_apps_are_told_apart() -> None:
    with metering(MeterOptions(apps=frozenset({"shop"}))) as meter:
        metrics.EVENTS_APPLIED.add(2, app="shop")
        for number in range(1_000):
            metrics.EVENTS_APPLIED.add(1, app=f"hostile-{number}")
        assert value(meter, "graphweft_events_applied_total", app="shop") == 2
        assert value(meter, "graphweft_events_applied_total", app="other") == 1_000
        assert "hostile" not in meter.text()


def test_a_second_role_of_the_process_shares_the_meter(meter: ProcessMeter, logs: Logs) -> None:
    metrics.EVENTS_READ.add(1)
    with metering(MeterOptions()) as second:
        metrics.EVENTS_READ.add(1)
        assert second is meter
    metrics.EVENTS_READ.add(1)
    assert value(meter, "graphweft_events_read_total") == 3
    assert "metrics_shared" not in events_of(logs)
    with metering(MeterOptions(apps=frozenset({"shop"}))):
        pass
    assert events_of(logs) == ["metrics_shared"]


def test_each_warning_and_error_in_the_log_is_counted_by_its_event(meter: ProcessMeter) -> None:
    set_up_logs("info", "json")
    own, library = get_logger("graphweft.test"), logging.getLogger("some.library")
    own.info("server_started")
    own.debug("server_asked")
    own.warning("server_slow")
    own.warning("server_slow", left_out=3)
    own.error(f"a text of {12} words")
    try:
        raise ValueError("the cause")
    except ValueError:
        own.exception("server_failed")
    library.info("it runs")
    library.error("a text of the library: %s", "with content")
    found = {labels: number for (name, labels), number in samples(meter).items() if name == LOG_ENTRIES.name}
    assert {tuple(value for _, value in labels): number for labels, number in found.items()} == {
        ("server_slow", "warning"): 5.0,
        ("other", "error"): 1.0,
        ("server_failed", "error"): 1.0,
        ("some.library", "error"): 1.0,
    }


def test_a_timed_block_counts_also_if_it_fails(meter: ProcessMeter, clock: VirtualClock) -> None:
    with pytest.raises(ValueError, match="no"), metrics.BUS_DURATION.timed("commit", clock=clock):  # noqa: PT012
        clock.advance(2)
        raise ValueError("no")
    assert value(meter, "graphweft_bus_operation_duration_seconds_sum", operation="commit") == 2


class Server:
    """Counts how often it is asked, and fails while it is down."""

    def __init__(self) -> None:
        self.asked = 0
        self.down = False

    async def read(self) -> dict[metrics.ObservedMetric, Any]:
        self.asked += 1
        if self.down:
            raise BusUnavailable("down")
        return {metrics.DEAD_LETTERS: {(): self.asked}}


async def test_a_server_is_asked_when_metrics_are_collected_and_not_too_often(
    meter: ProcessMeter, clock: VirtualClock
) -> None:
    server = Server()
    async with looking(server.read, [metrics.DEAD_LETTERS], clock=clock):
        await clock.sleep(1_000)
        assert server.asked == 0
        await look()
        await look()
        assert server.asked == value(meter, "graphweft_dead_letters") == 1
        await clock.sleep(LOOK_S)
        await look()
        assert server.asked == value(meter, "graphweft_dead_letters") == 2
    await look()
    assert server.asked == 2


async def test_what_a_server_does_not_say_is_missing_and_counted(meter: ProcessMeter, clock: VirtualClock) -> None:
    server = Server()
    async with looking(server.read, [metrics.DEAD_LETTERS], clock=clock):
        await look()
        server.down = True
        await clock.sleep(LOOK_S)
        await look()
        assert value(meter, "graphweft_dead_letters") is None
        assert value(meter, "graphweft_metrics_looks_failed_total") == 1
        server.down = False
        await clock.sleep(LOOK_S)
        await look()
        assert value(meter, "graphweft_dead_letters") == 3


async def test_a_server_that_does_not_answer_holds_up_no_collection(meter: ProcessMeter, clock: VirtualClock) -> None:
    async def never() -> dict[metrics.ObservedMetric, Any]:
        await clock.sleep(10_000)
        return {}

    async with looking(never, [metrics.DEAD_LETTERS], clock=clock):
        began = clock.monotonic()
        await look()
        assert clock.monotonic() - began <= 1
        await clock.sleep(60)
        assert value(meter, "graphweft_metrics_looks_failed_total") == 1


async def test_requests_to_models_are_counted_with_their_tokens(meter: ProcessMeter, model_server: ModelServer) -> None:
    endpoint = Endpoint(model_server.url, headers={}, timeout_s=10, concurrency=1)
    question = {"model": "m", "messages": [{"role": "user", "content": 'say "prompt_tokens": 99999'}]}
    model_server.failures.append(Failure.error(400))
    with pytest.raises(EndpointRefused):
        await endpoint.post("/chat/completions", question)
    model_server.failures.append(Failure.error(500))
    with pytest.raises(EndpointUnavailable):
        await endpoint.post("/chat/completions", question)
    await endpoint.post("/chat/completions", question)
    await endpoint.aclose()
    name = "graphweft_model_calls_total"
    assert [value(meter, name, kind="chat", result=result) for result in ("ok", "refused", "unavailable")] == [1, 1, 1]
    tokens = [value(meter, "graphweft_model_tokens_total", kind="chat", direction=each) for each in ("input", "output")]
    assert tokens == [1, 1]
    assert value(meter, "graphweft_model_call_duration_seconds_count", kind="chat") == 3
