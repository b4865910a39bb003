"""Of two responders on Kafka one dies, stands still or restarts: each request is answered within its budget.

The session of the responders is longer than the tests, so nothing waits for Kafka to notice.
"""

# The state of a client shows what it has heard.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from tests.services.environment import clean_environment
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.kafka.connection import servers
from graphweft.transports.kafka.context import KafkaContext
from graphweft_contracts import ContextReply
from graphweft_workers.drivers.embedded.server import die_with_parent
from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue
from graphweft_workers.testing.suites.request_kit import asked, echo, request, take

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

BUDGET_MS = 10_000
"""Of each request. Clients ask a second responder after 0.3 s, so only an unanswered request takes this long."""
QUESTIONS = 40
"""Of each client after the fault: one for each partition of the requests, ten times."""


class Responder:
    """A responder as a process."""

    def __init__(self, url: str, name: str) -> None:
        self._arguments = [sys.executable, "-m", "tests.services.kafka_responder", url, name]
        self.name = name
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._arguments, env=clean_environment(), stdin=subprocess.DEVNULL,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509 - runs before any thread of the child
        )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.send(number)
        self._process.wait()

    def restart(self) -> None:
        self.end(signal.SIGTERM)
        self.start()

    def crash_and_restart(self) -> None:
        self.end()
        self.start()


class Stage:
    """Two responders and two clients."""

    def __init__(self, responders: list[Responder], clients: list[Client]) -> None:
        self.responders = responders
        self.clients = clients
        self._asked = 0

    async def ask(self, client: Client) -> tuple[str, ContextReply]:
        """Ask a new question; return who answered, and the reply."""
        self._asked += 1
        n = self._asked
        reply = await client.context(agent="One", chat_id="c", context={"n": n})
        name, _, said = reply.text.partition(" ")
        assert said in ("", str(n))
        return name, reply

    async def both_answer(self) -> None:
        seen: dict[Client, set[str]] = {client: set() for client in self.clients}

        async def all_seen() -> bool:
            for client in self.clients:
                seen[client].add((await self.ask(client))[0])
            return all(names >= {responder.name for responder in self.responders} for names in seen.values())

        await until(all_seen)

    async def ask_all(self) -> tuple[set[str], set[str | None]]:
        """Ask ``QUESTIONS`` of each client, two at a time; return who answered, and the reasons of the replies."""
        found: list[tuple[str, ContextReply]] = []

        async def repeat(client: Client) -> None:
            found.extend([await self.ask(client) for _ in range(QUESTIONS // 2)])

        await asyncio.gather(*(repeat(client) for client in self.clients for _ in range(2)))
        return {name for name, _ in found}, {reply.reason for _, reply in found}


@pytest_asyncio.fixture
async def stage(kafka_url: str) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as opened:
        clients = [
            await opened.enter_async_context(Client(kafka_url, app_id="shop", workflow="Shop", budget_ms=BUDGET_MS))
            for _ in range(2)
        ]
        responders = [Responder(kafka_url, name) for name in ("a", "b")]
        for responder in responders:
            opened.callback(responder.end)
        made = Stage(responders, clients)
        await made.both_answer()
        yield made


FAULTS: dict[str, Callable[[Responder], None]] = {
    "killed": lambda responder: responder.end(),
    "stopped": lambda responder: responder.send(signal.SIGSTOP),
    "restarted": Responder.restart,
    "crashed and restarted": Responder.crash_and_restart,
}


@pytest.mark.long(keep=("killed",))
@pytest.mark.parametrize("fault", list(FAULTS))
async def test_the_other_responder_answers_within_the_budget(stage: Stage, fault: str) -> None:
    asking = asyncio.create_task(stage.ask_all())
    await asyncio.to_thread(FAULTS[fault], stage.responders[0])
    assert (await asking)[1] == {None}
    names, reasons = await stage.ask_all()
    assert (names <= {"a", "b"}, reasons) == (True, {None})
    if fault in ("killed", "stopped"):
        assert names == {"b"}


@pytest.mark.long
async def test_a_responder_that_goes_on_takes_its_requests_again(stage: Stage) -> None:
    first = stage.responders[0]
    first.send(signal.SIGSTOP)
    assert await stage.ask_all() == ({"b"}, {None})
    first.send(signal.SIGCONT)
    await stage.both_answer()
    assert (await stage.ask_all())[1] == {None}


async def test_a_client_hears_of_a_request_that_takes_long(kafka_url: str) -> None:
    context = KafkaContext(servers(kafka_url), partitions=4)
    async with (
        contextlib.aclosing(context),
        contextlib.aclosing(KafkaRequestQueue(kafka_url, name="a", partitions=4, session_s=60.0)) as queue,
    ):
        asking = asyncio.create_task(context.request(request(context={"n": 1})))
        [waiting] = await take(queue, 1)
        await until(lambda: any(pending.is_alive for pending in context._pending.values()))
        await queue.reply(asked(waiting).reply_to, echo(asked(waiting)))
        queue.done(waiting.token)
        assert (await asking).text == "1"
