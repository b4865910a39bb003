"""Facts of users over their life, through the gateway: written, corrected, moved, deleted, ended, and asked for.

After each step an agent's text has exactly the values that are true for the user who is asked about. The situations
are the 15 of memorycheck, a release gate for memories of agents. Its endpoints map as follows: a tenant is an app with
a token; a fact is a message of its own, with ``expires_at`` if it ends by itself; to correct or delete it, its memory
is forgotten; an answer is the text that an agent gets. A step of time is a day, and the last day is now: what is asked
before is asked as of its day, and the rules, which ask for now, are asked on the last.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import httpx
import pytest
from tests.edges.test_cli_memory import Up

from graphweft_contracts.memory import memory_id

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(180)]

BUDGET_MS = 10_000
SOURCE = "/lifecycle"
APPS = ("north", "south")
type Who = tuple[str, str]
"""Tenant and user."""
type Step = tuple[Any, ...]

KIM, LEE, UMA, SAM = ("north", "kim"), ("north", "lee"), ("south", "uma"), ("south", "kim")
SITUATIONS: dict[str, list[Step]] = {
    "corrected, then deleted": [
        ("write", KIM, "phone plan", "copper-1931"), ("ask", KIM, "Which phone plan is it?", ["phone plan"]),
        ("write", KIM, "phone plan", "fibre-2044"), ("ask", KIM, "Which phone plan is it?", ["phone plan"]),
        ("delete", KIM, "phone plan"), ("ask", KIM, "Which phone plan is it?", []),
    ],
    "deleted": [
        ("write", KIM, "contact channel", "pigeon-77"), ("ask", KIM, "Which contact channel?", ["contact channel"]),
        ("delete", KIM, "contact channel"), ("ask", KIM, "Which contact channel?", []),
    ],
    "of one user": [
        ("write", KIM, "discount", "spring-rebate-12"), ("ask", KIM, "Is there a discount?", ["discount"]),
        ("ask", LEE, "Is there a discount?", []), ("ask", UMA, "Is there a discount?", []),
    ],
    "moved to another user": [
        ("write", KIM, "project file", "blue-dossier-5"), ("move", KIM, LEE, "project file"),
        ("ask", LEE, "Which project file?", ["project file"]), ("ask", KIM, "Which project file?", []),
    ],
    "deleted, then written anew": [
        ("write", KIM, "membership", "otter-3310"), ("ask", KIM, "What membership is it?", ["membership"]),
        ("delete", KIM, "membership"), ("ask", KIM, "What membership is it?", []),
        ("write", KIM, "membership", "heron-9021"), ("ask", KIM, "What membership is it?", ["membership"]),
    ],
    "corrected twice": [
        ("write", KIM, "tax class", "alder-16"), ("write", KIM, "tax class", "birch-27"),
        ("ask", KIM, "Which tax class applies?", ["tax class"]),
        ("write", KIM, "tax class", "cedar-38"), ("ask", KIM, "Which tax class applies?", ["tax class"]),
    ],
    "corrected beside another": [
        ("write", KIM, "delivery slot", "dawn-41"), ("write", KIM, "care level", "silver-52"),
        ("write", KIM, "delivery slot", "dusk-63"),
        ("ask", KIM, "What are the delivery slot and the care level?", ["delivery slot", "care level"]),
    ],
    "deleted beside another": [
        ("write", KIM, "notice period", "lantern-74"), ("write", KIM, "emergency contact", "anvil-85"),
        ("delete", KIM, "notice period"),
        ("ask", KIM, "Who is the emergency contact, and is there a notice period?", ["emergency contact"]),
    ],
    "the same user id in another tenant": [
        ("write", KIM, "contract remark", "granite-96"), ("ask", KIM, "Which contract remark?", ["contract remark"]),
        ("ask", SAM, "Which contract remark?", []),
    ],
    "the same fact of two users": [
        ("write", KIM, "desk number", "maple-107"), ("write", LEE, "desk number", "willow-118"),
        ("ask", KIM, "Which desk number?", ["desk number"]), ("ask", LEE, "Which desk number?", ["desk number"]),
    ],
    "moved, then written anew": [
        ("write", KIM, "shift memo", "quartz-129"), ("move", KIM, LEE, "shift memo"),
        ("write", KIM, "shift memo", "opal-130"),
        ("ask", KIM, "Which shift memo?", ["shift memo"]), ("ask", LEE, "Which shift memo?", ["shift memo"]),
    ],
    "deleted, written anew, then corrected": [
        ("write", KIM, "bank account", "finch-141"), ("delete", KIM, "bank account"),
        ("write", KIM, "bank account", "raven-152"), ("write", KIM, "bank account", "swift-163"),
        ("ask", KIM, "Which bank account is current?", ["bank account"]),
    ],
    "moved to another tenant": [
        ("write", KIM, "audit log", "ember-174"), ("move", KIM, UMA, "audit log"),
        ("ask", KIM, "Which audit log is kept?", []), ("ask", UMA, "Which audit log is kept?", ["audit log"]),
    ],
    "ended": [
        ("write", KIM, "parking code", "walrus-185", 2), ("ask", KIM, "Is there a parking code?", ["parking code"]),
        ("pass", 3), ("ask", KIM, "Is there a parking code?", []),
    ],
    "ended beside another": [
        ("write", KIM, "guest pass", "saffron-196", 2), ("write", KIM, "team lead", "basalt-207"),
        ("ask", KIM, "Is there a guest pass, and who is the team lead?", ["guest pass", "team lead"]),
        ("pass", 3), ("ask", KIM, "Is the guest pass still good, and who is the team lead?", ["team lead"]),
    ],
}  # fmt: skip


class Facts:
    """What is true, and the memory that is told and asked."""

    def __init__(self, gateway: httpx.AsyncClient) -> None:
        self._gateway = gateway
        self._days = 0
        """How many days are to pass."""
        self._ends: dict[tuple[Who, str], int] = {}
        """How many days are left when a fact ends."""
        self._run = uuid4().hex[:8]
        self._true: dict[Who, dict[str, tuple[str, str]]] = {}
        """By user and name of a fact: its value, and the id of its memory."""
        self._ever: set[str] = set()
        self._last: dict[str, str] = {}

    async def play(self, steps: list[Step]) -> None:
        """Do the steps."""
        self._days = sum(step[1] for step in steps if step[0] == "pass")
        for step, *arguments in steps:
            await getattr(self, "let_pass" if step == "pass" else step)(*arguments)

    async def let_pass(self, days: int) -> None:
        """Let days pass. What ends by itself is not true any more, and nobody says so."""
        self._days -= days
        for (who, key), left in self._ends.items():
            if self._days <= left:
                self._true[who].pop(key)

    async def write(self, who: Who, key: str, value: str, days: int | None = None) -> None:
        """Write a fact, in place of an earlier value; it is true for some days."""
        if key in self._true.get(who, {}):
            await self.delete(who, key)
        id = uuid4().hex
        message = {"role": "user", "text": f"The {key} is {value}.", "message_id": key, "time": self._day()}
        if days is not None:
            self._ends[who, key] = self._days - days
            message["expires_at"] = self._day(days)
        await self._emit(who, "memory.add", {"user_id": self._user(who), "messages": [message]}, id)
        self._true.setdefault(who, {})[key] = (value, memory_id(SOURCE, id, 0))
        self._ever.add(value)

    async def delete(self, who: Who, key: str) -> None:
        _, memory = self._true[who].pop(key)
        await self._emit(who, "memory.forget", {"memory_ids": [memory]}, uuid4().hex)

    async def move(self, who: Who, to: Who, key: str) -> None:
        value = self._true[who][key][0]
        await self.delete(who, key)
        await self.write(to, key, value)

    async def ask(self, who: Who, question: str, keys: list[str]) -> None:
        """Check that the texts for an agent have the values of these facts, and no value that is not true."""
        known = self._true.get(who, {})
        user = self._user(who)
        search = {"text": question, "memory": {"user_id": user}, "fill": "latest"}
        if self._days:
            search["as_of"] = self._day()
        asked = {"agent": "helper", "workflow": "default", "chat_id": "new", "user_id": user}
        by_rules = asked | {"context": {"messages": [{"role": "user", "text": question}]}}
        for body in (asked | {"search": search}, *([] if self._days else [by_rules])):
            text = (await self._question(who, body))["text"]
            shown = {value for value in self._ever if value in text}
            assert {known[key][0] for key in keys} <= shown <= {value for value, _ in known.values()}, text

    async def _question(self, who: Who, body: dict[str, Any]) -> Any:
        body = body | {"budget_ms": BUDGET_MS, "after": self._last.get(who[0])}
        body = {name: value for name, value in body.items() if value is not None}
        answer = await self._gateway.post("/v1/context", json=body, headers=_token(who))
        assert answer.status_code == 200, answer.text
        reply = answer.json()
        assert (reply["reason"], reply["missing"], reply["stale_by"]) == (None, [], None)
        return reply

    async def _emit(self, who: Who, type: str, data: dict[str, Any], id: str) -> None:
        event = {
            "specversion": "1.0",
            "id": id,
            "source": SOURCE,
            "type": type,
            "chatid": self._user(who),
            "data": data,
        }
        headers = {**_token(who), "Content-Type": "application/cloudevents+json"}
        answer = await self._gateway.post("/v1/events", content=json.dumps(event), headers=headers)
        assert answer.status_code == 202, answer.text
        [self._last[who[0]]] = answer.json()["positions"]

    def _day(self, days: int = 0) -> str:
        """Return the time of this day, or of one that is so many days later."""
        return (datetime.now(UTC) - timedelta(days=self._days - days)).isoformat()

    def _user(self, who: Who) -> str:
        """Return the id of the user in this test; in another tenant the same id is another user."""
        return f"{who[1]}-{self._run}"


def _token(who: Who) -> dict[str, str]:
    return {"Authorization": f"Bearer {who[0]}"}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("lifecycle"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def gateway(up: Up) -> Iterator[str]:
    """The gateway as a process, with a token for each of the two tenants."""
    roles = ["emit", "read", "erase"]
    tokens = [{"sha256": hashlib.sha256(app.encode()).hexdigest(), "app_id": app, "roles": roles} for app in APPS]
    (up.folder / "tokens.yaml").write_text(json.dumps({"tokens": tokens}))
    process = subprocess.Popen(
        up.command("run", "gateway", "--port", "0"),
        cwd=up.folder, env=up.environment | {"GRAPHWEFT_GATEWAY_TOKENS": "tokens.yaml"},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        said = cast("Any", process.stdout).readline()
        assert "answers on" in said
        yield said.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=120)


@pytest.fixture
async def facts(gateway: str) -> AsyncIterator[Facts]:
    async with httpx.AsyncClient(base_url=gateway, timeout=120) as client:
        yield Facts(client)


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_an_agent_reads_what_is_true_now_and_nothing_else(facts: Facts, situation: str) -> None:
    await facts.play(SITUATIONS[situation])
