"""Two tenants with rights and keys of their own, and a third party without either, on real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
import yaml
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import TopicAuthorizationFailedError
from redis.exceptions import NoPermissionError
from structlog.testing import capture_logs
from tests.edges.test_cli import clean_environment
from tests.services.buses import mutation_bus
from tests.services.fixtures import SecureKafka
from tests.services.kafka_rights import apply
from tests.services.layouts import spread
from tests.services.roles import role
from tests.services.waiting import until

from graphweft import Client
from graphweft.transport import Outgoing
from graphweft.transports.kafka.connection import servers
from graphweft.transports.redis.connection import connect
from graphweft.transports.redis.layout import agreed_layout
from graphweft.transports.registry import make_transport
from graphweft_contracts import BusUnavailable, DeadLetter, Event, channels, wire
from graphweft_contracts.signatures import SIGNATURE, SigningKey
from graphweft_workers.drivers import bus_driver
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.read_turns import ReadTurns
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.rights import PASSWORD, commands
from graphweft_workers.processes.responder_usage import ResponderUsage

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
    return Event.create(
        "order.paid", app_id=app, chat_id="c", workflow="Shop", data={"order": order, "by": app}, **more
    )


def asked(app: str, reply_to: str = "") -> dict[str, Any]:
    return {
        "id": f"{app}-{time.monotonic_ns()}", "app_id": app, "workflow": "Shop", "agent": "Ann", "chat_id": "c",
        "deadline_ms": int(time.time() * 1000) + 20_000, "reply_to": reply_to,
    }  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Tenancy:
    """A bus with a user for each role and tenant, each with the rights that ``graphweft acl`` prints."""

    urls: Mapping[str, str]
    graph: str
    """The graph server, with all rights."""
    letters: Callable[[], Awaitable[Sequence[DeadLetter]]]
    request: Callable[[str, bytes, bytes], Awaitable[Any]]
    """Writes a request as a user: URL, body, signature."""
    replies: Callable[[str], str]
    """The reply channel of an app."""

    async def orders(self, app: str) -> list[str]:
        store = FalkorDBStore(self.graph, write_timeout_ms=1_000)
        try:
            table = await store.read(app, "MATCH (o:Order) RETURN o.id ORDER BY o.id", {}, timeout_s=120)
            return [row[0] for row in table.rows]
        finally:
            await store.aclose()


@asynccontextmanager
async def graph_users(server: EmbeddedServer, *more: tuple[Any, Any, str | None, str]) -> AsyncIterator[dict[str, str]]:
    """Make users by the commands that ``graphweft acl`` prints; yield their URLs."""
    wanted: list[tuple[Any, Any, str | None, str]] = [
        *more,
        ("falkordb", "worker", None, "graph-worker"),
        ("falkordb", "responder", None, "graph-responder"),
    ]
    async with redis.Redis(unix_socket_path=str(server.socket)) as admin:
        for product, name, app, user in wanted:
            for line in commands(product, name, app_id=app, user=user, graph_template="mozaiks_{app_id}"):
                assert await admin.execute_command(*line.replace(PASSWORD, "secret").split()) == b"OK"
        try:
            yield {user: f"unix://{user}:secret@{server.socket}" for *_, user in wanted}
        finally:
            await admin.execute_command("ACL", "DELUSER", *(user for *_, user in wanted))


@asynccontextmanager
async def services(folder: Path, tenancy: Tenancy) -> AsyncIterator[Path]:
    """Run a worker and a responder, each with the rights of its role only; yield the responder's log."""
    (folder / "workflows/Shop").mkdir(parents=True)
    (folder / "workflows/Shop/graph_injection.yaml").write_text(RULES)
    urls = tenancy.urls
    common = {"GRAPHWEFT_SIGNING_KEYS": keyring(folder / "keys.yaml"), "GRAPHWEFT_PARTITIONS": "2"}
    async with role("mutation", folder, urls["worker"], GRAPHWEFT_GRAPH_URL=urls["graph-worker"], **common):
        async with Client(urls["acme"], signing_key=ACME) as first:
            await first.emit(paid("acme", "a1"))
            # The worker makes the rules active, which a responder may not.
            await until(lambda: tenancy.orders("acme"), lambda found: found == ["a1"])
        async with role(
            "injection", folder, urls["responder"], GRAPHWEFT_GRAPH_URL=urls["graph-responder"], **common
        ) as responder:
            yield responder.log


async def reads_and_forgeries_are_refused(folder: Path, tenancy: Tenancy) -> None:
    urls, orders = tenancy.urls, tenancy.orders
    async with services(folder, tenancy) as log:
        options: dict[str, Any] = {"workflow": "Shop", "budget_ms": 20_000}
        async with (
            Client(urls["acme"], app_id="acme", signing_key=ACME, **options) as acme,
            Client(urls["globex"], app_id="globex", signing_key=GLOBEX, **options) as globex,
        ):
            assert await acme.emit(paid("acme", "a2"), wait_s=120)
            assert all(await globex.emit_all([paid("globex", "g1"), paid("globex", "g2")], wait_s=120))
            await until(lambda: orders("acme"), lambda found: found == ["a1", "a2"])
            await until(lambda: orders("globex"), lambda found: found == ["g1", "g2"])
            # The responder makes its topics when it starts; a tenant may make none.
            await until(lambda: acme.context(agent="Ann", chat_id="c"), lambda found: "a2" in found.text)
            assert "g1" in (await globex.context(agent="Ann", chat_id="c")).text
            # Acme asks for globex, by its own client.
            stolen = await acme.context(agent="Ann", chat_id="c", app_id="globex", budget_ms=3_000)
            assert (stolen.reason, stolen.text) == ("bus_unavailable", "")
            assert "allow" in (stolen.detail or "") or "may not" in (stolen.detail or "")
            assert "a1" in (await acme.context(agent="Ann", chat_id="c")).text  # its own channel still works
            # Acme writes as globex: with its own key, without one, as an operator; and what only workers write.
            forged = paid("globex", "stolen")
            assert await acme.emit(forged, wait_s=120)
            unsigned = make_transport(urls["acme"])
            dropped = wire.DroppedLetter("globex", None, None, ("1-1",), "set_aside")
            for fields in (wire.encode(forged), {wire.DROPPED: dropped.encode()}):
                await unsigned.append([Outgoing(key="globex/c", fields=fields)])
            await unsigned.aclose()
            inner = Event.create("memory.embedded", app_id="acme", chat_id="c", data=EMBEDDED)
            assert await acme.emit(inner, wait_s=120)
            # The forged id must not make the owner's event a copy.
            assert await globex.emit(paid("globex", "g3", id=forged.id), wait_s=120)
            await until(lambda: orders("globex"), lambda found: "g3" in found)
            assert await orders("globex") == ["g1", "g2", "g3"]

            async def refusals() -> list[DeadLetter]:
                # The first event may be before the rules in the log; then it waits for them as a letter.
                return [each for each in await tenancy.letters() if each.reason != "no_rules"]

            refused = await until(refusals, lambda found: len(found) >= 4)
            assert sorted(each.reason for each in refused) == ["bad_signature"] * 2 + ["unsigned"] * 2
            assert not any("stolen" in each.message for each in refused)
        # Requests about globex that acme may write: the answer goes nowhere that acme may read, and is refused anyway.
        own, other = tenancy.replies("acme"), tenancy.replies("globex")
        for reply_to, reason in ((own, "reply_channel"), (other, "bad_signature")):
            body = json.dumps(asked("globex", reply_to)).encode()
            await tenancy.request(urls["acme"], body, SigningKey.parse(ACME).of_request(body))
            await until(lambda: asyncio.to_thread(log.read_text), lambda text, reason=reason: f'"{reason}"' in text)


EMBEDDED = {"memory_id": "m", "model": "m", "embedding": [0.1]}


@pytest.mark.long
async def test_two_tenants_on_redis_can_neither_read_nor_forge(
    server: EmbeddedServer, url: str, tmp_path: Path
) -> None:
    users: list[tuple[Any, Any, str | None, str]] = [
        ("redis", "tenant", "acme", "acme"),
        ("redis", "tenant", "globex", "globex"),
        ("redis", "worker", None, "worker"),
        ("redis", "responder", None, "responder"),
    ]
    async with graph_users(server, *users) as urls, redis.Redis.from_url(url) as admin:

        async def letters() -> list[DeadLetter]:
            return [DeadLetter.model_validate_json(body) for body in await admin.hvals(channels.DEAD_LETTERS)]

        async def request(user: str, body: bytes, signature: bytes) -> None:
            async with redis.Redis.from_url(user) as raw:
                await raw.xadd(channels.CONTEXT_REQUESTS, {b"data": body, SIGNATURE: signature})

        async with redis.Redis.from_url(url) as raw:
            await agreed_layout(raw, spread(2))  # what the operator, or the first worker, makes
        tenancy = Tenancy(
            urls=urls,
            graph=url,
            letters=letters,
            request=request,
            replies=lambda app: channels.context_replies("x", app),
        )
        await reads_and_forgeries_are_refused(tmp_path, tenancy)
        await cannot_on_redis(urls["acme"])
        rebuilt = await rebuild(tmp_path, url, url)
        assert rebuilt.returncode == 0, rebuilt.stdout


async def rebuild(folder: Path, bus: str, graph: str) -> subprocess.CompletedProcess[str]:
    """Archive and trim the log, and rebuild the graph of globex from it: it must equal the live one."""
    environment = clean_environment(
        GRAPHWEFT_BUS_URL=bus, GRAPHWEFT_GRAPH_URL=graph, GRAPHWEFT_RULES=str(folder / "workflows"),
        GRAPHWEFT_SIGNING_KEYS=str(folder / "keys.yaml"), GRAPHWEFT_ARCHIVE_URL=str(folder / "archive"),
    )  # fmt: skip
    for command in (["archive", "now"], ["rebuild", "--app", "globex", "--verify"]):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", "graphweft_workers.cli", *command], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            break
    return done


async def cannot_on_redis(url: str) -> None:
    async with redis.Redis.from_url(url) as acme:
        for command in (
            ("XRANGE", channels.events_stream(0), "-", "+"),
            ("XREAD", "STREAMS", channels.events_stream(1), "0"),
            ("XRANGE", channels.CONTEXT_REQUESTS, "-", "+"),
            ("HGETALL", channels.DEAD_LETTERS),
            ("SUBSCRIBE", channels.context_replies("x", "globex")),
            ("SUBSCRIBE", channels.context_replies("x")),
            ("PSUBSCRIBE", "*"),
            ("PUBLISH", channels.context_replies("x", "globex"), "x"),
            ("GRAPH.QUERY", "mozaiks_globex", "MATCH (n) RETURN n"),
            ("HSET", channels.ORDERS, "*", "chat"),
            ("SET", channels.PARTITION_COUNT, "1"),
            ("XTRIM", channels.events_stream(0), "MAXLEN", "0"),
            ("DEL", channels.events_stream(0)),
            ("ACL", "LIST"),
            ("CONFIG", "GET", "*"),
            ("KEYS", "*"),
        ):
            with pytest.raises(NoPermissionError):
                await acme.execute_command(*command)


async def test_two_tenants_on_kafka_can_neither_read_nor_forge(
    secure_kafka: SecureKafka, server: EmbeddedServer, url: str, tmp_path: Path
) -> None:
    users: list[tuple[Any, str | None, str]] = [
        ("worker", None, "worker"), ("responder", None, "responder"), ("tenant", "acme", "acme"),
        ("tenant", "globex", "globex"),
    ]  # fmt: skip
    address = secure_kafka.address

    admin = AIOKafkaAdminClient(**servers(address("admin")).options)
    await admin.start()
    bus = mutation_bus(address("admin"), spread(2), lease_s=10)
    try:
        for name, app, user in users:
            await apply(admin, commands("kafka", name, app_id=app, user=user, graph_template=""))
        await bus.partitions.layout()

        async def request(user: str, body: bytes, signature: bytes) -> None:
            producer = AIOKafkaProducer(**servers(user).options)
            await producer.start()
            await producer.send_and_wait(
                channels.CONTEXT_REQUESTS_TOPIC, body, headers=[(SIGNATURE.decode(), signature)]
            )
            await producer.stop()

        async with graph_users(server) as urls:
            tenancy = Tenancy(
                urls={**urls, **{user: address(user) for *_, user in users}},
                graph=url,
                letters=lambda: bus.dead_letters.read(limit=100),
                request=request,
                replies=lambda app: channels.context_replies_partition(0, channels.context_replies_topic(app)),
            )
            await reads_and_forgeries_are_refused(tmp_path, tenancy)
            await cannot_on_kafka(servers(address("acme")).options)
            # A responder with the rights of before goes on, and says that it cannot report.
            lines = commands("kafka", "responder", app_id=None, user="before", graph_template="")
            await apply(admin, [line for line in lines if not ("Write" in line and channels.USAGE_TOPIC in line)])
            for user, says in (("responder", 0), ("before", 1)):
                reporting = mutation_bus(address(user), spread(2), lease_s=10)
                usage = ResponderUsage(reporting.usage, Counter(acme=1), name=user)
                with capture_logs() as logs:
                    for _ in range(2):
                        await usage.report()
                assert [each["event"] for each in logs] == ["usage_not_reported"] * says
                await reporting.aclose()
            assert [each for each in (await bus.usage.after(None)).found if "responder" in each] == [
                "responder:responder"
            ]
            for name, app, user in users:
                [found] = await bus_driver(address(user)).examine_rights(address(user), name, app_id=app, user=user)
                assert found.state == "ok", found
            rebuilt = await rebuild(tmp_path, address("admin"), url)
            assert rebuilt.returncode == 0, rebuilt.stdout
    finally:
        await bus.aclose()
        await admin.close()


async def cannot_on_kafka(options: Mapping[str, Any]) -> None:
    admin = AIOKafkaAdminClient(**options)
    await admin.start()
    seen = {topic["topic"] for topic in await admin.describe_topics()}
    assert seen == {
        channels.EVENTS_TOPIC, channels.PARTITIONS_TOPIC, channels.CONTEXT_REQUESTS_TOPIC,
        channels.context_replies_topic("acme"),
    }  # fmt: skip
    assert (await admin.delete_topics([channels.EVENTS_TOPIC])).topic_error_codes[0][1]
    await admin.close()
    for topic in (channels.EVENTS_TOPIC, channels.CONTEXT_REQUESTS_TOPIC):  # the others cannot even be named
        consumer = AIOKafkaConsumer(**options, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        try:
            with pytest.raises(TopicAuthorizationFailedError):
                await consumer.getmany(timeout_ms=10_000)
        finally:
            await consumer.stop()
    producer = AIOKafkaProducer(**options, request_timeout_ms=2_000)
    await producer.start()
    try:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait(channels.PARTITIONS_TOPIC, b"x")
    finally:
        await producer.stop()


@pytest.mark.parametrize(
    ("role_name", "app"), [("tenant", "acme"), ("gateway", None), ("responder", None), ("worker", None)]
)
async def test_the_doctor_finds_the_rights_that_the_recipe_gives(
    server: EmbeddedServer, url: str, role_name: Any, app: str | None
) -> None:
    async with graph_users(server, ("redis", role_name, app, "someone")) as urls, redis.Redis.from_url(url) as admin:
        driver = bus_driver(url)
        [good] = await driver.examine_rights(urls["someone"], role_name, app_id=app, user="someone")
        assert (good.state, good.found) == ("ok", f"those of a {role_name}")
        await admin.execute_command("ACL", "SETUSER", "someone", "-get")
        [bad] = await driver.examine_rights(urls["someone"], role_name, app_id=app, user="someone")
        assert bad.state == "fail"
        assert bad.advice.startswith("ACL SETUSER someone +get")
        assert not await admin.keys("graphweft:*")  # to try has no effect


RECIPES = [
    ("redis", "tenant", "acme"), ("redis", "gateway", None), ("redis", "responder", None), ("redis", "worker", None),
    ("falkordb", "responder", None), ("falkordb", "worker", None),
]  # fmt: skip
SHARED = {"client|setinfo", "client|setname", "client|id", "client|unblock", "config|get", "module|list", "script|load"}
STREAMS = {
    f"{command}|{each}"
    for command, several in {
        "xinfo": ("stream", "groups", "consumers"),
        "xgroup": ("create", "setid", "delconsumer"),
    }.items()
    for each in several
}


@pytest.mark.parametrize(("product", "role_name", "app"), RECIPES, ids=str)
async def test_a_recipe_allows_subcommands_one_by_one(
    server: EmbeddedServer, url: str, product: str, role_name: Any, app: str | None
) -> None:
    async with graph_users(server, (product, role_name, app, "someone")), redis.Redis.from_url(url) as admin:
        found = [sub for row in await subcommands(admin) for sub in row if await allowed(admin, *sub.split("|"))]
        assert {*found} <= SHARED | STREAMS
        assert await allowed(admin, "GRAPH.CONFIG", "GET", "TIMEOUT_MAX") == (product == "falkordb")
        for setting in ("TIMEOUT_DEFAULT", "QUERY_MEM_CAPACITY", "MAX_QUEUED_QUERIES", "RESULTSET_SIZE", "TIMEOUT_MAX"):
            assert not await allowed(admin, "GRAPH.CONFIG", "SET", setting, "1")
        for command in (
            "CONFIG SET maxmemory 1", "CONFIG REWRITE", "MODULE LOAD x", "MODULE UNLOAD x", "CLIENT KILL 1.1.1.1:1",
            "CLIENT PAUSE 1000", "SHUTDOWN", "FLUSHALL", "FLUSHDB", "DEBUG SLEEP 1", "ACL SETUSER x", "REPLICAOF a 1",
            "SCRIPT FLUSH", "FUNCTION FLUSH", "SAVE", "BGREWRITEAOF", "KEYS *", "GRAPH.CONSTRAINT CREATE x",
            "SLOWLOG RESET", "XGROUP DESTROY x y", "MONITOR",
        ):  # fmt: skip
            assert not await allowed(admin, *command.split()), command


async def subcommands(admin: redis.Redis) -> list[list[str]]:
    """Return the subcommands of each command that has some."""
    found = await admin.execute_command("EVAL", "return redis.call('COMMAND')", 0)
    return [[each[0].decode() for each in row[9]] for row in found if len(row) > 9 and row[9]]


async def allowed(admin: redis.Redis, *command: str) -> bool:
    """Tell whether the user may run a command, whatever its keys and arguments."""
    for more in range(9):
        with contextlib.suppress(redis.ResponseError):  # it has another number of arguments
            answer = await admin.execute_command("ACL", "DRYRUN", "someone", *command, *["1"] * more)
            return b"to run the" not in answer
    raise AssertionError(command)


async def test_the_printed_rights_let_a_worker_count_letters_and_a_responder_report(
    server: EmbeddedServer, url: str
) -> None:
    users = ("redis", "worker", None, "worker"), ("redis", "responder", None, "responder")
    async with graph_users(server, *users) as urls, redis.Redis.from_url(url) as admin:
        worker, responder = (mutation_bus(urls[name], spread(1), lease_s=10) for name in ("worker", "responder"))
        letter = DeadLetter(
            id="0:1-0:r/m", reason="timeout", message="x", position="0:1-0", time=datetime.now(UTC), app_id="acme",
            rule="r", mutation="m", fields={"data": "event"},
        )  # fmt: skip
        await worker.dead_letters.put([letter])
        assert await worker.dead_letters.read(limit=10, whole=False) == [letter.model_copy(update={"fields": {}})]
        assert await worker.dead_letters.read(limit=10, size=1) == [letter]
        with pytest.raises(BusUnavailable):
            await responder.dead_letters.read(limit=10, whole=False)
        counts = Counter(acme=1)
        usage = ResponderUsage(responder.usage, counts, name="r1")
        await usage.report()
        assert list((await worker.usage.after(None)).found) == ["responder:r1"]
        # The rights of before: it goes on, and says so once.
        await admin.execute_command("ACL", "SETUSER", "responder", "-hset", "-hdel")
        with capture_logs() as logs:
            for _ in range(2):
                counts["acme"] += 1
                await usage.report()
        assert [(each["event"], "graphweft acl" in each["advice"]) for each in logs] == [("usage_not_reported", True)]
        await worker.aclose()
        await responder.aclose()


async def test_the_printed_rights_let_slow_reads_and_writes_take_turns(server: EmbeddedServer, url: str) -> None:
    async with graph_users(server) as urls, redis.Redis.from_url(url) as admin:
        clients = [connect(urls[f"graph-{name}"], io_timeout_s=20, decode=True) for name in ("worker", "responder")]
        writer, reader = map(ReadTurns, clients)
        for _ in range(2):
            async with reader.reading("mozaiks_a", until=time.monotonic() + 60, of_graph=1, of_all=1):
                assert await admin.zcard(channels.SLOW_READS) == 1
            async with writer.writing("mozaiks_a"):
                assert await admin.zcard(channels.SLOW_WRITES) == len(writer._heeded)
            writer._heeded = frozenset({"mozaiks_a"})
        assert not any(each._turns.is_refused or each._looks.is_refused for each in (writer, reader))
        for turns, client in zip((writer, reader), clients, strict=True):
            await turns.aclose()
            await client.aclose()
