"""Log lines that peers can cause are limited, and those that are left out are counted."""

from __future__ import annotations

import logging

import structlog
from structlog.testing import capture_logs
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import BusUnavailable
from graphweft_workers.support.log_limit import LimitedLines, LogLimit


def test_one_line_of_a_kind_a_minute_and_the_others_counted() -> None:
    clock = VirtualClock()
    limit = LogLimit(clock=clock)
    assert [limit.admit("a") for _ in range(3)] == [0, None, None]
    assert limit.admit("b") == 0
    clock.advance(59.9)
    assert limit.admit("a") is None
    clock.advance(0.1)
    assert limit.admit("a") == 3
    assert limit.take_left_out() == 0


def test_an_outage_is_one_warning_a_minute_whichever_partition_it_meets() -> None:
    clock = VirtualClock()
    limit = LogLimit(clock=clock)
    logger = structlog.get_logger("test")
    with capture_logs() as logs:
        for number in range(64):
            refused = BusUnavailable(f"partition {number} cannot be read: no space left on device")
            limit.warn(logger, "partition_interrupted", refused, partition=number)
        limit.warn(logger, "partition_interrupted", BusUnavailable("the connection is closed"), partition=1)
        clock.advance(60.0)
        limit.warn(logger, "partition_interrupted", refused, partition=9)
    warnings = [(log["partition"], log.get("left_out")) for log in logs if log["log_level"] == "warning"]
    assert warnings == [(0, None), (1, None), (9, 63)]
    assert len(logs) == 66  # the others at level debug


def test_kinds_without_end_are_limited_too() -> None:
    clock = VirtualClock()
    limit = LogLimit(kinds=3, clock=clock)
    assert [limit.admit(number) for number in range(5)] == [0, 0, 0, None, None]
    assert limit.take_left_out() == 2
    assert limit.take_left_out() == 0
    clock.advance(60.0)
    assert [limit.admit(number) for number in range(5, 9)] == [0, 0, 0, None]


def test_a_filter_counts_by_the_text_and_lets_errors_pass() -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    clock = VirtualClock()
    logger = logging.Logger("x")
    logger.addHandler(Kept())
    logger.addFilter(LimitedLines(LogLimit(clock=clock)))
    for number in range(1_000):
        logger.warning("bad request %d", number)
    logger.error("a defect")
    logger.error("a defect")
    clock.advance(60.0)
    logger.warning("bad request %d", 7)
    assert lines == [
        "bad request 0", "a defect", "a defect", "bad request 7 (999 lines of this kind were left out before)",
    ]  # fmt: skip


def test_entries_with_fields_are_counted_by_their_event() -> None:
    entries: list[object] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entries.append(record.msg)

    clock = VirtualClock()
    logger = logging.Logger("x")
    logger.addHandler(Kept())
    logger.addFilter(LimitedLines(LogLimit(clock=clock)))
    for number in range(3):
        logger.warning({"event": "request_refused", "address": number})
    clock.advance(60.0)
    logger.warning({"event": "request_refused", "address": 7})
    assert entries == [
        {"event": "request_refused", "address": 0}, {"event": "request_refused", "address": 7, "left_out": 2},
    ]  # fmt: skip


def test_what_a_library_repeats_in_an_outage_is_limited_with_its_errors() -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    kept = Kept()
    kept.addFilter(LimitedLines(LogLimit(clock=VirtualClock()), libraries=["aiokafka"]))
    for name in ("aiokafka.cluster", "graphweft.bus", "other"):
        logger = logging.Logger(name)
        logger.addHandler(kept)
        for _ in range(2):
            logger.error("%s: not found", name)
    assert lines == ["aiokafka.cluster: not found", *["graphweft.bus: not found"] * 2, *["other: not found"] * 2]
