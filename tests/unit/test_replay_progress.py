"""The progress of a replay as lines, and as a bar on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.services.virtual_time import VirtualClock

from graphweft_workers.cli import replay_progress as module
from graphweft_workers.cli.replay_progress import ReplayProgress, replay_progress
from graphweft_workers.replay.replay import ReplayStep


def test_a_line_names_the_rate_the_share_and_the_time_left() -> None:
    progress = ReplayProgress("shop")
    progress._began = 100.0  # pyright: ignore[reportPrivateUsage]
    done = {0: ReplayStep(entries=300, events=20), 1: ReplayStep(entries=700, events=30)}
    assert progress.line(done, 110.0) == "shop: 1,000 entries read, 50 events applied, 100 entries/s"
    progress.total = 4_000
    assert progress.line(done, 110.0).endswith("100 entries/s, 25%, 0:00:30 left")
    progress.total = 10
    assert progress.line(done, 110.0).endswith("100%, 0:00:00 left")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr(module, "stderr", lambda: console)
    with replay_progress("shop") as (tell, expect):
        expect(10)
        tell({0: ReplayStep(entries=5, events=1)})
    assert "shop" in written.getvalue()
    assert "50%" in written.getvalue()


def test_elsewhere_lines_are_written_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: VirtualClock
) -> None:
    monkeypatch.setattr(module, "stderr", lambda: Console(file=io.StringIO(), force_terminal=False))
    with replay_progress("shop", clock=clock) as (tell, _):
        for number, after_s in enumerate((0.0, 1.0, 1.5, 0.5)):
            clock.advance(after_s)
            tell({0: ReplayStep(entries=number, events=1)})
    assert capsys.readouterr().err == "shop: 2 entries read, 1 event applied, 1 entries/s\n"
