"""Two tenants with rights and keys of their own, and a third party without either, on real servers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
import yaml
from redis.exceptions import NoPermissionError
from tests.services.layouts import spread
from tests.services.roles import role

from graphweft import Client
from graphweft.transport import Outgoing, Transport
from graphweft.transports.registry import make_transport
from graphweft_contracts import ContextRequest, DeadLetter, Event, channels, wire
from graphweft_contracts.signatures import SigningKey
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.roles.rights import PASSWORD, commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

RULES = """
mutation_rules:
  - name: bought
    events: [order.paid]
    mutations:
      - id: order
        cypher: "MERGE (o:Order {id: $id}) SET o.by = $by"
        params: {id: $event.order, by: $event.by}
injection_rules:
  - name: orders
    agents: [Ann]
    queries:
      - id: orders
        inject_as: Orders
        cypher: "MATCH (o:Order) RETURN o.id AS id ORDER BY id"
        format: list
"""
ACME, GLOBEX, WORKER = (f"{name}-1:{name[0] * 40}" for name in ("acme", "globex", "worker"))
PAST = "2026-01-01T00:00:00Z"


def keyring(path: Path) -> str:
    keys = [
        {"id": "acme-1", "app_id": "acme", "secret": "a" * 40, "from": PAST},
        {"id": "globex-1", "app_id": "globex", "secret": "g" * 40, "from": PAST},
        {"id": "worker-1", "role": "worker", "secret": "w" * 40, "from": PAST},
    ]
    path.write_text(yaml.safe_dump({"keys": keys}))
    return str(path)


def paid(app: str, order: str, **more: Any) -> Event:
    return Event.create("order.paid", app_id=app, chat_id="c", workflow="Shop", data={"order": order, "by": app}, **more)


def asked(app: str, reply_to: str = "") -> dict[str, Any]:
    return {
        "id": f"{app}-{time.monotonic_ns()}", "app_id": app, "workflow": "Shop", "agent": "Ann", "chat_id": "c",
        "deadline_ms": int(time.time() * 1000) + 20_000, "reply_to": reply_to,
    }  # fmt: skip


@dataclass
class Tenancy:
    """A bus with a user for each tenant, and its services, each with the rights of its role only."""

    urls: dict[str, str]
    orders: Callable[[str], Awaitable[list[str]]]
    letters: Callable[[], Awaitable[list[DeadLetter]]]
    clients: dict[str, Client] = field(default_factory=dict[str, Client])


def user_url(server: EmbeddedServer, user: str) -> str:
    return f"unix://{user}:secret@{server.socket}"


@asynccontextmanager
async def redis_users(server: EmbeddedServer) -> AsyncIterator[dict[str, str]]:
    """Make the users by the commands that ``graphweft acl`` prints."""
    wanted: list[tuple[Any, Any, str | None, str]] = [
        ("redis", "tenant", "acme", "acme"),
        ("redis", "tenant", "globex", "globex"),
        ("redis", "worker", None, "worker"),
        ("redis", "responder", None, "responder"),
        ("falkordb", "worker", None, "graph-worker"),
        ("falkordb", "responder", None, "graph-responder"),
    ]
    async with redis.Redis(unix_socket_path=str(server.socket)) as admin:
        for product, name, app, user in wanted:
            for line in commands(product, name, app_id=app, user=user, graph_template="mozaiks_{app_id}"):
                assert await admin.execute_command(*line.replace(PASSWORD, "secret").split()) == b"OK"
        try:
            yield {user: user_url(server, user) for *_, user in wanted}
        finally:
            await admin.execute_command("ACL", "DELUSER", *(user for *_, user in wanted))


async def until[T](look: Callable[[], Awaitable[T]], done: Callable[[T], bool]) -> T:
    async with asyncio.timeout(25):
        while not done(found := await look()):  # noqa: ASYNC110 - another process's work
            await asyncio.sleep(0.05)
    return found


@asynccontextmanager
async def services(folder: Path, urls: dict[str, str]) -> AsyncIterator[dict[str, Path]]:
    (folder / "workflows/Shop").mkdir(parents=True)
    (folder / "workflows/Shop/graph_injection.yaml").write_text(RULES)
    common = {"GRAPHWEFT_SIGNING_KEYS": keyring(folder / "keys.yaml"), "GRAPHWEFT_PARTITIONS": "2"}
    async with role("mutation", folder, urls["worker"], GRAPHWEFT_GRAPH_URL=urls["graph-worker"], **common) as worker:
        async with Client(urls["acme"], signing_key=ACME) as first:
            await first.emit(paid("acme", "a1"))  # the worker pushes the rules, which a responder may not
        async with role(
            "injection", folder, urls["responder"], GRAPHWEFT_GRAPH_URL=urls["graph-responder"], **common
        ) as responder:
            yield {"mutation": worker.log, "injection": responder.log}


async def orders_of(url: str, app: str) -> list[str]:
    store = FalkorDBStore(url, write_timeout_ms=1_000)
    try:
        table = await store.read(app, "MATCH (o:Order) RETURN o.id ORDER BY o.id", {}, timeout_s=5)
        return [row[0] for row in table.rows]
    finally:
        await store.aclose()


async def test_two_tenants_on_redis_can_neither_read_nor_forge(server: EmbeddedServer, url: str, tmp_path: Path) -> None:
    async with redis_users(server) as urls, redis.Redis.from_url(url) as admin:

        async def orders(app: str) -> list[str]:
            return await orders_of(url, app)

        async def letters() -> list[DeadLetter]:
            return [DeadLetter.model_validate_json(body) for body in await admin.hvals(channels.DEAD_LETTERS)]

        setup = make_transport(url, new=spread(2))
        await setup.append([Outgoing(key="none/c", fields={b"data": b"makes the layout"})])
        await setup.aclose()
        async with services(tmp_path, urls) as logs:
            async with (
                Client(urls["acme"], app_id="acme", workflow="Shop", signing_key=ACME, budget_ms=20_000) as acme,
                Client(urls["globex"], app_id="globex", workflow="Shop", signing_key=GLOBEX, budget_ms=20_000) as globex,
            ):
                assert await acme.emit(paid("acme", "a2"), wait_s=10)
                assert await globex.emit_all([paid("globex", "g1"), paid("globex", "g2")], wait_s=10)
                await until(lambda: orders("acme"), lambda found: found == ["a1", "a2"])
                await until(lambda: orders("globex"), lambda found: found == ["g1", "g2"])
                reply = await acme.context(agent="Ann", chat_id="c")
                assert "a2" in reply.text, (reply, logs["injection"].read_text())
                assert "g1" in (await globex.context(agent="Ann", chat_id="c")).text
                # Acme asks for globex, by its own client.
                stolen = await acme.context(agent="Ann", chat_id="c", app_id="globex", budget_ms=3_000)
                assert stolen.reason == "bus_unavailable", stolen
                assert "does not allow" in (stolen.detail or "")
                assert "a1" in (await acme.context(agent="Ann", chat_id="c")).text  # its own channel still works
                # Acme writes as globex: without a signature, with its own key, and what only workers write.
                forged = paid("globex", "stolen")
                assert await acme.emit(forged, wait_s=10)
                unsigned = make_transport(urls["acme"])
                await unsigned.append([Outgoing(key=forged.key, fields=wire.encode(forged))])
                dropped = wire.Dropped("globex", None, None, ("1-1",), "set_aside")
                await unsigned.append([Outgoing(key="globex/c", fields={wire.DROPPED: dropped.encode()})])
                inner = Event.create("memory.embedded", app_id="acme", chat_id="c", data=EMBEDDED)
                assert await acme.emit(inner, wait_s=10)
                await unsigned.aclose()
                # The forged id must not make the owner's event a copy.
                await globex.emit(paid("globex", "g3", id=forged.id), wait_s=10)
                await until(lambda: orders("globex"), lambda found: "g3" in found)
                assert await orders("globex") == ["g1", "g2", "g3"]
                refused = await until(letters, lambda found: len(found) >= 5)
                reasons = sorted(letter.reason for letter in refused)
                assert reasons == ["bad_signature", "bad_signature", "invalid_event", "unsigned", "unsigned"]
                assert not any("stolen" in letter.message for letter in refused)
            await cannot_read(urls["acme"])
            # A forged request is refused before it is answered: by rights it may be written.
            async with redis.Redis.from_url(urls["acme"]) as raw, admin.pubsub() as ear:
                await ear.subscribe(channels.context_replies("x", "globex"), channels.context_replies("x", "acme"))
                for reply_to, key in ((channels.context_replies("x", "globex"), ACME), (channels.context_replies("x", "acme"), ACME)):
                    body = json.dumps(asked("globex", reply_to)).encode()
                    fields = {b"data": body, b"gw_signature": SigningKey.parse(key).of_request(body)}
                    await raw.xadd(channels.CONTEXT_REQUESTS, fields)
                found = await until(lambda: ear.get_message(timeout=1), lambda found: (found or {}).get("type") == "message")
                assert found is not None
                assert b"g1" not in found["data"]
                assert b"refused" in found["data"]
                assert found["channel"] == channels.context_replies("x", "globex").encode()
            assert "request_refused" in logs["injection"].read_text()


EMBEDDED = {"memory_id": "m", "model": "m", "embedding": [0.1]}


async def cannot_read(url: str) -> None:
    async with redis.Redis.from_url(url) as acme:
        for command in (
            ("XRANGE", channels.events_stream(0), "-", "+"),
            ("XREAD", "STREAMS", channels.events_stream(1), "0"),
            ("XRANGE", channels.CONTEXT_REQUESTS, "-", "+"),
            ("HGETALL", channels.DEAD_LETTERS),
            ("SUBSCRIBE", channels.context_replies("x", "globex")),
            ("PSUBSCRIBE", "*"),
            ("PUBLISH", channels.context_replies("x", "globex"), "x"),
            ("GRAPH.QUERY", "mozaiks_globex", "MATCH (n) RETURN n"),
            ("HSET", channels.ORDERS, "*", "chat"),
            ("SET", channels.PARTITION_COUNT, "1"),
            ("XTRIM", channels.events_stream(0), "MAXLEN", "0"),
            ("DEL", channels.events_stream(0)),
            ("ACL", "WHOAMI"),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
        ):
            with pytest.raises(NoPermissionError):
                await acme.execute_command(*command)
