"""A job that waits says why, also when the reason changes."""

from __future__ import annotations

from typing import Any, cast

from structlog.testing import capture_logs

from graphweft_contracts import Transient
from graphweft_workers.engine.job_worker import JobWorker


class Job:
    group = "verdicts"


def warned(*messages: str) -> list[str]:
    worker = JobWorker(cast("Any", None), cast("Any", None), cast("Any", Job()), name="w")
    with capture_logs() as logs:
        for message in messages:
            worker._log_wait(Transient(message, retry_after_s=1.0))
    return [each["error"] for each in logs if each["log_level"] == "warning"]


def test_a_reason_that_changes_is_warned_of() -> None:
    behind, refused = "the mutation workers have not applied 3:17-0 yet", "the endpoint refuses the key (401)"
    assert warned(behind, refused, refused, behind.replace("3:17-0", "5:18-2"), refused) == [behind, refused]


def test_the_warnings_of_an_outage_are_bounded() -> None:
    assert len(warned(*(f"reason {chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(100)))) == 20
