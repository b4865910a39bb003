"""An outage may have several causes, one after the other: each is told once, with what to do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.services.virtual_time import VIRTUAL

from graphweft import Client, Event
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import BusUnavailable
from graphweft_contracts.clock import PastClock
from graphweft_workers.doctor import _tokens  # pyright: ignore[reportPrivateUsage]
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.settings.settings import Settings

CAUSES = ["Connection closed by server", "it refuses the login", "it refuses the login"]
NOW = datetime(2026, 6, 1, tzinfo=UTC)


class NoQueue:
    """A queue of requests whose bus is unavailable, each time for the next cause."""

    def __init__(self) -> None:
        self.asked = 0

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[Any]:
        self.asked += 1
        raise BusUnavailable(CAUSES[min(self.asked, len(CAUSES)) - 1])

    async def leave(self) -> Sequence[Any]:
        return ()

    def wake(self) -> None:
        pass


async def test_a_responder_tells_each_cause_of_an_outage() -> None:
    queue: Any = NoQueue()
    responder = InjectionResponder(queue, None, clock=VIRTUAL)  # type: ignore[arg-type]
    with capture_logs() as logs:
        running = asyncio.create_task(responder.run())
        await VIRTUAL.sleep(20)
        responder.stop()
        await running
    told = [line["error"] for line in logs if (line["event"], line["log_level"]) == ("requests_interrupted", "warning")]
    assert told == CAUSES[:2]
    assert queue.asked > 3


class Refusing(Transport):
    """A transport whose server is away at first, and then refuses the token."""

    def __init__(self) -> None:
        self.texts = iter(["no answer", "answers 401: token-expired; `graphweft token new --app APP` makes a new one"])
        self.last = ""

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        self.last = next(self.texts, self.last)
        raise BusUnavailable(self.last, retry_after_s=0.01)


async def test_a_client_tells_each_cause_and_no_step_that_does_not_help(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with Client(transport=Refusing()) as client:
        await client.emit(Event.create("note.made", app_id="a", chat_id="c", source="/t", data={}), wait_s=1)
    said = [record.getMessage() for record in caplog.records if "buffered" in record.getMessage()]
    assert said[0] == "the bus is unavailable, events are buffered: no answer; `graphweft doctor` checks it"
    assert said[1].startswith("events are not taken, and are buffered: answers 401: token-expired")
    assert "doctor" not in said[1]


def test_doctor_names_tokens_that_have_expired_or_will(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    lines = [
        f"  - {{sha256: '{number:064x}', app_id: acme, name: {name}, roles: [emit], expires: {(NOW + at).isoformat()}}}"
        for number, (name, at) in enumerate(
            {"old": -timedelta(days=1), "next": timedelta(days=3), "later": timedelta(days=90)}.items()
        )
    ]
    file.write_text("\n".join(["tokens:", *lines]))
    [check] = _tokens(Settings.load(gateway_tokens=file), PastClock(NOW, VIRTUAL))
    assert check.state == "warn"
    assert check.found == (
        "expired: old of app 'acme' at 2026-05-31 00:00Z; expire within a week: next of app 'acme' at 2026-06-04 00:00Z"
    )
    assert _tokens(Settings.load(gateway_tokens=file), PastClock(NOW - timedelta(days=30), VIRTUAL)) == []
