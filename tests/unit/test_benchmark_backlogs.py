"""What the benchmarks of rates rest on."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks import backlog, command, consumers, many_apps, poison, throughput
from benchmarks.processes import cpu_s, waited_s
from benchmarks.services import PARTITIONS

from graphweft_workers.engine.log.reading_window import MOST_ENTRIES


@pytest.mark.parametrize("rows", [throughput, poison, consumers], ids=["a, b, c, f", "p", "r"])
def test_a_backlog_is_more_than_three_times_what_all_windows_hold(rows: ModuleType) -> None:
    """Less is decoded for the most part before the first effect."""
    assert backlog.WINDOWS == PARTITIONS * MOST_ENTRIES
    assert rows.BACKLOG > 3 * backlog.WINDOWS


def test_a_jvm_is_warm_before_it_is_measured() -> None:
    assert consumers.CONNECTOR_WARM_UP >= 150_000


def test_the_row_of_many_apps_measures_one_event_of_each() -> None:
    assert list(many_apps.EVENTS) == [1, 4, 24]


def test_the_processor_time_of_a_process_is_its_own_clock() -> None:
    before = time.process_time()
    found = cpu_s(os.getpid())
    assert before <= found <= time.process_time()


def test_the_time_waited_for_a_processor_only_grows() -> None:
    before = waited_s(os.getpid())
    assert 0 <= before <= waited_s("self")


def test_a_command_that_prints_json_is_followed_by_what_it_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main(["lint", "--json", str(tmp_path)])
    *_, took = capsys.readouterr().out.splitlines()
    assert json.loads(took).keys() == {"cpu_s", "highest_mb"}
    with pytest.raises(SystemExit, match="1"):
        command.main(["lint", "--json", str(tmp_path / "missing")])
