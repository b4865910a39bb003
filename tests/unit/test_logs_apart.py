"""What a command of one test sets up for logs is not seen by the next test."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from graphweft_workers.support.lazy_logger import before_next_entry, get_logger
from graphweft_workers.support.logs import set_up_logs


@pytest.mark.parametrize("number", [1, 2])
def test_a_command_before_leaves_nothing_for_the_next_entry(number: int) -> None:
    logger = get_logger("graphweft.test")
    with capture_logs() as logs:
        logger.info("an_entry", number=number)
    assert [log["number"] for log in logs] == [number]
    before_next_entry(lambda: set_up_logs("warning", "console"))


@pytest.mark.parametrize("number", [1, 2])
def test_a_set_up_does_not_outlive_its_test(number: int) -> None:
    with capture_logs() as logs:
        structlog.get_logger("graphweft.test").info("an_entry", number=number)
    assert [log["number"] for log in logs] == [number]
    set_up_logs("warning", "console")
