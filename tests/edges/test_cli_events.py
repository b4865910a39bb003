"""``graphweft events`` and ``coverage``: what they say about a log that a real worker has applied."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.edges.test_cli import Call, call, clean_environment
from tests.kafka.test_rules_log import compiled, stored
from tests.services.buses import applied, mutation_bus

from graphweft.transport import Outgoing
from graphweft.transports.registry import make_transport
from graphweft_contracts import Event, Layout, channels, wire
from graphweft_contracts.layout import ALL_APPS
from graphweft_contracts.rules_log import StoredRules
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.bus import redis_bus
from graphweft_workers.engine.failures.retries import retry
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import read_range
from graphweft_workers.engine.plan.order import Arranger
from graphweft_workers.engine.plan.plan import Plan
from graphweft_workers.engine.worker import MutationWorker
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_with
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Checkpoint
from graphweft_workers.reports.scan import LogFollower
from graphweft_workers.rule_sets.active_rules import LoggedRules

__all__ = ("call",)  # a fixture

pytestmark = pytest.mark.integration

RULES = """
version: "1.0"
mutation_rules:
  - name: orders
    events: ["order.paid"]
    mutations:
      - id: order
        cypher: "MERGE (o:Order {id: $id}) SET o.by = '{by}'"
        params: {id: $event.order}
      - id: customer
        cypher: "MERGE (c:Customer {id: $id})"
        params: {id: $event.customer}
      - id: ratio
        cypher: "MERGE (o:Ratio {id: $id}) SET o.ratio = 10 / $divisor"
        params: {id: $event.order, divisor: $event.divisor}
  - name: large_orders
    events: ["order.*"]
    condition: "has($event.total) && $event.total > 100 && $event.order != ''"
    mutations:
      - {id: large, cypher: "MERGE (o:Large {id: $id})", params: {id: $event.order}}
  - name: of_bob
    events: ["order.paid"]
    agents: ["Bob"]
    mutations:
      - {id: bob, cypher: "MERGE (o:Bob {id: $id})", params: {id: $event.order}}
  - name: returns
    events: ["order.returned"]
    mutations:
      - {id: returned, cypher: "MERGE (o:Returned {id: $id})", params: {id: $event.order}}
"""
ESCAPES = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202etxt"
WHOLE = {"order": "o1", "customer": "c1", "divisor": 2}


def made(id: str, type: str = "order.paid", *, app: str = "shop", chat: str = "c", workflow: str | None = "Shop",
         source: str = "/test", **data: Any) -> Event:  # fmt: skip
    return Event.create(type, app_id=app, chat_id=chat, workflow=workflow, id=id, source=source, data=data)


class Log:
    """A bus, a graph, and the commands that find them."""

    def __init__(self, call: Call, url: str, graph_url: str, layout: Layout | None = None) -> None:
        self.url = url
        self.servers = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": graph_url}
        self._call = call
        self._graph_url = graph_url
        self._layout = layout or Layout(partitions=4)

    def bus(self) -> Bus:
        return mutation_bus(self.url, self._layout, lease_s=2.0)

    def emit(self, *events: Event, more: Mapping[bytes, bytes] | None = None) -> list[str]:
        """Append events, each with further fields; return their positions."""

        async def append() -> list[str]:
            async with contextlib.aclosing(make_transport(self.url, new=self._layout)) as transport:
                return list(
                    await transport.append(
                        [Outgoing(key=each.key, fields={**wire.encode(each), **(more or {})}) for each in events]
                    )
                )

        return asyncio.run(append())

    def append(self, fields: Mapping[bytes, bytes], app: str = "shop") -> str:
        """Append an entry as it is."""

        async def append() -> str:
            async with contextlib.aclosing(make_transport(self.url, new=self._layout)) as transport:
                return (await transport.append([Outgoing(key=f"{app}/c", fields=dict(fields))]))[0]

        return asyncio.run(append())

    def push(self, by: str = "one", scope: str = ALL_APPS, *, text: str = RULES) -> str:
        """Activate rules; return their digest."""
        rules = compiled({"Shop/graph_injection.yaml": text.replace("{by}", by).encode()})

        async def activate() -> None:
            async with contextlib.aclosing(self.bus()) as bus:
                await bus.partitions.count()
                await bus.rules.store(rules.digest, StoredRules(files=rules.files, summary=rules.summary.to_json()))
                await bus.rules.activate(scope, rules.digest)

        asyncio.run(activate())
        return rules.digest

    def apply(self) -> None:
        """Let a worker apply all events."""

        async def work() -> None:
            async with contextlib.aclosing(self.bus()) as bus, contextlib.aclosing(self.bus()) as other:
                graph = FalkorDBStore(self._graph_url)
                worker = MutationWorker(bus, graph, LoggedRules(bus.rules, stored), name="one", lease_s=2.0)
                running = asyncio.create_task(worker.run())
                await applied(other)
                worker.stop()
                await running
                await graph.aclose()

        asyncio.run(work())

    def run(self, *arguments: str, code: int = 0) -> str:
        done = self._call(*arguments, **self.servers)
        assert done.code == code, done.out + done.err
        for text in (done.out, done.err):
            assert "\x1b" not in text
            assert all(each.isprintable() or each == "\n" for each in text), text
        return done.out if code in (0, 1) else done.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))

    def tail(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.run("events", "tail", "--json", *arguments).splitlines()]


@pytest.fixture
def log(call: Call, url: str) -> Log:
    return Log(call, url, url)


def outcomes(why: Any) -> dict[str, str]:
    return {each["mutation"]: each["outcome"] for each in why["mutations"]}


# tail


def test_tail_shows_every_kind_of_entry_and_changes_nothing(log: Log, url: str) -> None:
    log.push()
    [position] = log.emit(made("e1", **WHOLE))
    log.emit(made("e1", **WHOLE), more={wire.RETRY: wire.Retry(position, "orders", "order").encode()})
    log.append({b"data": b"no event"})
    log.emit(made("e2", **WHOLE), more={wire.ACTIVATION: b'{"number": 1}'})
    log.emit(made("e3", **WHOLE), more={wire.ACTIVATION: b'{"number": 77}'})
    log.emit(made("e4", **WHOLE), more={wire.RETRY: b'"forged"'})
    with redis.Redis.from_url(url) as raw:
        before = {key: raw.dump(key) for key in raw.keys()}  # noqa: SIM118
        found = log.tail()
        assert {key: raw.dump(key) for key in raw.keys()} == before  # noqa: SIM118
    own = [each for each in found if each["partition"] == int(position.split(":")[0])]
    kinds = ["activation", "event", "retry", "invalid", "activation", "event", "invalid"]
    assert [each["kind"] for each in own] == kinds
    assert len(found) == len(own) + 3  # the activation in the other partitions
    assert own[1]["event"]["data"] == WHOLE
    assert own[2]["retry"]["mutation"] == "order"
    assert wire.unpack(own[3]["fields"]) == {b"data": b"no event"}
    assert "note" not in own[0]
    assert "forged: the bus records this activation at another place" in own[4]["note"]
    assert "forged: it claims an activation" in own[5]["note"]
    assert "'gw_retry' is reserved" in own[6]["fault"]
    lines = log.run("events", "tail").splitlines()
    assert len(lines) == len(found)
    assert f"rules.activated  #1 {found[0]['activation']['rules'][:12]}" in lines[0]
    assert f"  shop  c  order.paid  e1  {position}  {{" in "\n".join(lines)
    assert "[retry of orders/order]" in "\n".join(lines)
    assert [each["position"] for each in log.tail("-n", "2")] == [each["position"] for each in found[-2:]]


def test_tail_filters_and_tells_what_it_cannot_decide(log: Log, call: Call) -> None:
    log.emit(
        made("a1", **WHOLE), made("a2", "order.returned", chat="other"), made("b1", app="else"),
        made("a3", "note.add", workflow=None),
    )  # fmt: skip
    log.append({b"x": b"y"})
    ids = {
        ("--app", "shop"): {"a1", "a2", "a3"},
        ("--type", "order.*"): {"a1", "a2", "b1"},
        ("--type", "order.paid", "--app", "shop"): {"a1"},
        ("--chat", "other"): {"a2"},
        ("--workflow", "Shop"): {"a1", "a2", "b1"},
        ("--since", "1h", "--app", "else"): {"b1"},
        ("--since", "2999-01-01"): set[str](),
    }
    for arguments, wanted in ids.items():
        assert {each["event"]["id"] for each in log.tail(*arguments) if each["kind"] == "event"} == wanted
    hidden = call("events", "tail", "--app", "shop", **log.servers)
    assert "1 entry that cannot be decoded is not shown" in hidden.err
    cut = call("events", "tail", "--app", "shop", "--scan", "1", **log.servers)
    assert "only the newest 1 entry was searched" in cut.err
    assert "invalid --since 'soon'" in log.run("events", "tail", "--since", "soon", code=2)
    assert "invalid --app 'a b'" in log.run("events", "tail", "--app", "a b", code=2)


def test_text_of_others_cannot_control_the_terminal(log: Log, tmp_path: Path) -> None:
    log.push()
    hostile = made(ESCAPES, chat=ESCAPES, source=ESCAPES, order=ESCAPES, customer="x", divisor=1, total=5)
    [position] = log.emit(hostile)
    log.emit(made(ESCAPES, workflow=ESCAPES, app="else"), made("n\nnew line", k="x" * 900_000))
    log.append({b"\x1b[2J": b"\x1b[2J", b"data": b'{"type": "\x1b"}'})
    log.append({wire.CONTENT_TYPE: wire.STRUCTURED, wire.DATA: json.dumps({"type": ESCAPES, "id": ESCAPES}).encode()})
    log.apply()
    lines = log.run("events", "tail").splitlines()
    assert max(map(len, lines)) < 600
    assert any("\\u001b[31mred" in line for line in lines)
    assert any("n\\nnew line" in line for line in lines)
    whole = next(each for each in log.tail() if each["kind"] == "event" and each["event"]["id"] == "n\nnew line")
    assert len(whole["event"]["data"]["k"]) == 900_000
    for command in ("show", "why"):
        assert "\\u001b[31mred" in log.run("events", command, position)
        assert log.json("events", command, ESCAPES, "--app", "shop")["position"] == position
    assert "2 events have the id" in log.run("events", "show", ESCAPES, code=2)
    assert "no event with the id" in log.run("events", "show", ESCAPES, "--app", "nobody", code=2)
    assert "\\u001b" in log.run("coverage")
    assert log.json("coverage")["unmatched"]
    (tmp_path / "log.jsonl").write_bytes(wire.encode(hostile)[wire.DATA])
    assert "of 1 event match" in log.run("coverage", "log.jsonl")


def test_an_empty_bus_is_told(log: Log, call: Call) -> None:
    done = call("events", "tail", **log.servers)
    assert (done.code, done.out, done.err) == (0, "", "the bus holds no events\n")
    assert "no event with the id 'x' in the newest 0 entries of the log" in log.run("events", "show", "x", code=2)
    assert "no event with the id '3:17-0'" in log.run("events", "why", "3:17-0", code=2)
    assert log.json("coverage")["percent"] is None
    log.run("coverage", "--fail-under", "1", code=1)


def test_tail_goes_on_with_new_events_until_ctrl_c(log: Log) -> None:
    log.emit(made("old"))
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "events", "tail", "-f", "-n", "1", "--app", "shop"],
        env=clean_environment(**log.servers), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert "  old  " in process.stdout.readline()
        log.emit(made("not", app="else"), made("new"))
        assert "  new  " in process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert (process.returncode, rest, errors) == (130, "", "")


async def test_a_follower_tells_of_entries_that_it_may_have_missed(url: str) -> None:
    stream = channels.events_stream(0)
    told: list[str] = []

    async def fresh() -> list[str]:
        return [entry.offset for _, entry in await follower.fresh(lambda _, what: told.append(what))]

    with redis.Redis.from_url(url) as raw:
        async with contextlib.aclosing(redis_bus(url, new=Layout(partitions=1))) as bus:
            follower = LogFollower(bus, None)
            raw.xadd(stream, {"a": "b"}, id="1-0")
            assert await fresh() == ["1-0"]
            assert await fresh() == []
            raw.xadd(stream, {"a": "b"}, id="2-0")
            assert (await fresh(), told) == (["2-0"], [])
            for number in (3, 4):
                raw.xadd(stream, {"a": "b"}, id=f"{number}-0")
            raw.xtrim(stream, maxlen=1, approximate=False)
            assert await fresh() == ["4-0"]
            assert "those after 2-0 may have been trimmed" in told.pop()
            raw.delete(stream)
            raw.xadd(stream, {"a": "b"}, id="1-0")
            assert await fresh() == ["1-0"]
            assert told == ["was created anew; its entries are shown from the start"]


# show and why


def test_why_says_that_a_match_without_a_hit_changes_nothing(log: Log) -> None:
    log.push(text=RULES.replace("MERGE (o:Ratio", "MATCH (o:Ratio"))
    log.emit(made("fine", **WHOLE))
    log.apply()
    said = log.run("events", "why", "fine").splitlines()
    [order] = [line for line in said if line.startswith("orders/order ")]
    [ratio] = [line for line in said if line.startswith("orders/ratio ")]
    assert order.endswith(") is in the graph")
    assert ratio.endswith(") has run, and changed nothing if its MATCH found nothing then")


def test_why_names_rules_skips_dead_letters_and_retries(log: Log) -> None:
    digest = log.push()
    [fine] = log.emit(made("fine", **WHOLE, total=7))
    [skipped] = log.emit(made("skipped", order="o2", divisor=1))
    [failed] = log.emit(made("failed", order="o3", customer="c", divisor=0, total=300))
    [copy] = log.emit(made("fine", **WHOLE))
    [unknown] = log.emit(made("unknown", "note.add"))
    [nowhere] = log.emit(made("nowhere", workflow="Other"))
    waiting = log.json("events", "why", "fine")
    assert waiting["state"] == "waiting"
    assert set(outcomes(waiting).values()) == {"waiting"}
    log.apply()

    why = log.json("events", "why", "fine")
    assert (why["position"], why["state"], why["copies"], why["copy_of"]) == (fine, "applied", [copy], None)
    assert (why["rules"]["rules"], why["rules"]["ahead"]) == (digest, False)
    assert outcomes(why) == {"order": "applied", "customer": "applied", "ratio": "applied"}
    assert why["mutations"][0]["params"] == {"id": "o1"}
    reasons = {each["rule"]: each["reason"] for each in why["unmatched"]}
    assert reasons["large_orders"] == "the condition '$event.total > 100' is false: $event.total is 7"
    assert reasons["of_bob"] == "it is for the agents Bob; the agent of the event is none"
    text = log.run("events", "why", fine)
    assert f"rules: {digest[:12]}, activation 1 for all apps, announced at " in text
    assert "orders/order (Shop/graph_injection.yaml:" in text
    assert "batch: not known: the graph keeps a batch only while it is unfinished" in text

    why = log.json("events", "why", copy)
    assert (why["copy_of"], set(outcomes(why).values())) == (fine, {"copy"})
    why = log.json("events", "why", skipped)
    assert outcomes(why) == {"order": "applied", "ratio": "applied"}
    assert [(each["mutation"], "$event.customer, which is missing" in each["reason"]) for each in why["skipped"]] == [
        ("customer", True)
    ]
    assert [each["reason"] for each in why["dead_letters"]] == ["skipped"]

    why = log.json("events", "why", "failed")
    assert outcomes(why) == {"order": "applied", "customer": "applied", "ratio": "dead_letter", "large": "applied"}
    [letter] = why["dead_letters"]
    assert (letter["id"], letter["reason"]) == (f"{failed}:orders/ratio", "query_error")
    assert f"dead letter: {letter['id']}: query_error orders/ratio: " in log.run("events", "show", "failed")
    log.run("dlq", "retry", letter["id"])
    assert outcomes(log.json("events", "why", "failed"))["ratio"] == "retried"
    [again] = log.json("events", "show", "failed")["retries"]
    assert (again["kind"], again["retry"]["mutation"]) == ("retry", "ratio")
    why = log.json("events", "why", again["position"])
    assert (why["kind"], outcomes(why), why["unmatched"]) == ("retry", {"ratio": "waiting"}, [])
    log.apply()
    why = log.json("events", "why", again["position"])
    assert outcomes(why) == {"ratio": "dead_letter"}
    log.run("dlq", "drop", why["dead_letters"][0]["id"])
    why = log.json("events", "why", again["position"])
    assert (outcomes(why), len(why["drops"])) == ({"ratio": "dropped"}, 1)
    drop = why["drops"][0]["position"]
    assert "it is not an event" in log.run("events", "why", drop)
    assert f"[drop of orders/ratio at {again['offset']}]" in log.run("events", "show", drop)
    assert "dead_letter.dropped" in log.run("events", "tail")

    why = log.json("events", "why", unknown)
    assert (why["mutations"], "no rule is for the event type 'note.add'" in why["reason"]) == ([], True)
    why = log.json("events", "why", nowhere)
    assert "no rules for the workflow 'Other'" in why["reason"]
    assert [each["reason"] for each in why["dead_letters"]] == ["no_rules"]


def test_why_uses_the_rules_that_were_active_at_the_place(log: Log) -> None:
    log.emit(made("before", **WHOLE))
    first = log.push("one")
    log.emit(made("between", **WHOLE))
    second = log.push("two", "shop")
    log.emit(made("after", **WHOLE), made("after", app="else", **WHOLE))
    found = {
        name: log.json("events", "why", name, "--app", app)
        for name, app in (("before", "shop"), ("between", "shop"), ("after", "shop"))
    }
    assert {name: (why["rules"]["rules"], why["rules"]["ahead"]) for name, why in found.items()} == {
        "before": (first, True), "between": (first, False), "after": (second, False),
    }  # fmt: skip
    assert "'two'" in found["after"]["mutations"][0]["statement"]
    assert log.json("events", "why", "after", "--app", "else")["rules"]["rules"] == first
    assert "the first rules apply to earlier events too" in log.run("events", "why", "before")


def test_events_of_two_apps_with_one_id_are_never_mixed(log: Log) -> None:
    log.push()
    [mine] = log.emit(made("same", **WHOLE))
    [other] = log.emit(made("same", app="else", secret="theirs"))
    forged = wire.Retry(f"{mine}:orders/order", "orders", "order").encode()
    log.emit(made("same", app="else"), more={wire.RETRY: forged})
    log.emit(made("other id"), more={wire.RETRY: forged})
    log.apply()
    for command in ("show", "why"):
        refused = log.run("events", command, "same", code=2)
        assert "2 events have the id 'same': give --app or one of the positions" in refused
        assert f"{mine}  app shop" in refused
        assert f"{other}  app else" in refused
        shown = log.json("events", command, "same", "--app", "shop")
        assert (shown["position"], shown["copies"], shown["retries"]) == (mine, [], [])
        assert "theirs" not in json.dumps(shown)
        assert "is not an event of the app 'shop'" in log.run("events", command, other, "--app", "shop", code=2)
    log.emit(made("same", source="/another", **WHOLE))
    assert "source /another" in log.run("events", "show", "same", "--app", "shop", code=2)


def test_entries_that_are_no_events_are_explained(log: Log) -> None:
    log.push()
    position = log.append({b"x": b"y"})
    assert log.json("events", "show", position)["state"] == "waiting"
    log.apply()
    shown = log.json("events", "show", position)
    assert (shown["kind"], wire.unpack(shown["fields"]), shown["state"]) == ("invalid", {b"x": b"y"}, "passed")
    why = log.run("events", "why", position)
    assert "nothing: the entry cannot be decoded" in why
    assert f"dead letter: {position}: invalid_event" in why
    activation = next(each["position"] for each in log.tail() if each["kind"] == "activation")
    assert "the entry makes rules active" in log.run("events", "why", activation)
    assert log.json("events", "show", activation)["activation"]["number"] == 1
    for wrong in ("0:99999999999999-0", "99:1-0", "0:5", "0:x"):
        assert f"no event with the id '{wrong}'" in log.run("events", "show", wrong, code=2)


def test_an_event_that_is_set_aside_says_so(log: Log) -> None:
    log.push()
    [position] = log.emit(made("aside", **WHOLE))
    log.run("dlq", "skip", position)
    log.apply()
    why = log.json("events", "why", position)
    assert (why["set_aside"], set(outcomes(why).values())) == (True, {"set_aside"})


def test_an_unfinished_batch_is_shown_while_the_graph_holds_it(log: Log, url: str) -> None:
    log.push()
    first, last = log.emit(made("e1", **WHOLE), made("e2", **WHOLE))

    async def half() -> None:
        async with contextlib.aclosing(log.bus()) as bus, contextlib.aclosing(FalkorDBStore(url)) as graph:
            partition, _, offset = first.partition(":")
            entries = await bus.log.entries(int(partition), [offset, last.partition(":")[2]])
            active = LoggedRules(bus.rules, stored)
            await active.refresh()
            read = read_range(int(partition), entries, active.cursor(int(partition), ""), RecentEvents())
            plan = Plan.of(Checkpoint(), read.apps["shop"], Arranger(active.current("shop"), graph.dialect))
            await graph.progress("shop", int(partition))
            assert (await graph.apply("shop", int(partition), list(plan.writes(0, lambda _: 1))[:1])).count == 1

    asyncio.run(half())
    why = log.json("events", "why", "e1")
    assert (why["state"], why["plan"]["end"]) == ("in_plan", last.partition(":")[2])
    assert sum(row["done"] for row in why["plan"]["rows"]) == 1
    assert sorted(outcomes(why).values()) == ["applied", "waiting", "waiting"]
    assert set(outcomes(log.json("events", "why", "e2")).values()) == {"waiting"}
    text = log.run("events", "why", "e2")
    assert "in an unfinished batch up to" in text
    assert "batch: part of the graph's unfinished batch" in text
    log.apply()
    assert set(outcomes(log.json("events", "why", "e2")).values()) == {"applied"}


def test_without_a_graph_server_the_bus_is_still_shown(log: Log, call: Call) -> None:
    log.push()
    log.emit(made("e1", **WHOLE))
    log.apply()
    servers = log.servers | {"GRAPHWEFT_GRAPH_URL": "redis://127.0.0.1:1"}
    done = call("events", "why", "e1", "--json", **servers)
    assert done.code == 0
    assert "without the graph's checkpoint" in done.err
    assert (json.loads(done.out)["state"], json.loads(done.out)["checkpoint"]) == ("passed", None)


def test_a_bus_of_order_chat_is_searched_as_a_whole(call: Call, url: str) -> None:
    log = Log(call, url, url, Layout(partitions=4, order="chat"))
    log.push()
    positions = log.emit(*(made(f"e{n}", chat=f"c{n}", **WHOLE) for n in range(20)))
    assert len({position.partition(":")[0] for position in positions}) > 1
    log.apply()
    shown = log.tail("--app", "shop", "--type", "order.paid")
    assert {each["event"]["id"] for each in shown} == {f"e{n}" for n in range(20)}
    assert sorted(each["received"] for each in shown) == [each["received"] for each in shown]
    for number in (0, 7, 19):
        why = log.json("events", "why", f"e{number}", "--app", "shop")
        assert (why["position"], why["state"]) == (positions[number], "applied")
    assert log.json("coverage", "--app", "shop")["matched"] == 20


# coverage


def test_coverage_of_the_bus_counts_by_the_rules_at_each_place(log: Log, tmp_path: Path) -> None:
    log.push()
    log.emit(made("e1", **WHOLE), made("e2", **WHOLE), made("e1", **WHOLE))
    log.emit(made("r", **WHOLE), more={wire.RETRY: wire.Retry("0:1-0", "orders", "order").encode()})
    log.emit(made("s", order="o"), made("n1", "note.add"), made("n2", "note.add"), made("x", app="else", workflow=None))
    log.append({b"x": b"y"})
    found = log.json("coverage")
    counts = ("events", "matched", "skipped", "copies", "retries", "invalid")
    assert {name: found[name] for name in counts} == {
        "events": 6, "matched": 3, "skipped": 0, "copies": 1, "retries": 1, "invalid": 1,
    }  # fmt: skip
    assert [(each["type"], each["workflow"], each["events"]) for each in found["unmatched"]] == [
        ("note.add", "Shop", 2), ("order.paid", None, 1),
    ]  # fmt: skip
    mutations = {each["mutation"]: (each["matched"], each["skipped"]) for each in found["mutations"]}
    assert mutations == {
        "order": (3, 0), "customer": (2, 1), "ratio": (2, 1), "large": (0, 0), "bob": (0, 0), "returned": (0, 0),
    }  # fmt: skip
    text = log.run("coverage")
    assert "3 of 6 events match a rule (50.0%)" in text
    assert "orders/customer" in text
    assert "returns/returned" in text
    log.run("coverage", "--fail-under", "50")
    log.run("coverage", "--fail-under", "50.1", code=1)
    assert log.json("coverage", "--app", "else")["events"] == 1
    assert log.json("coverage", "--limit", "1")["events"] == 0  # the newest entry is invalid
    other = tmp_path / "rules/Shop/graph_injection.yaml"
    other.parent.mkdir(parents=True)
    other.write_text(RULES.replace('"order.returned"', '"note.*"'))
    by_folder = log.json("coverage", "--rules", "rules")
    assert [(each["type"], each["events"]) for each in by_folder["unmatched"]] == [("order.paid", 1)]
    assert by_folder["matched"] == 3, "the rule for notes lacks a value"
    assert by_folder["skipped"] == 2


def test_coverage_of_a_file_needs_no_server(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "rules/Shop/graph_injection.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(RULES)
    events = [made("e1", **WHOLE), made("e1", **WHOLE), made("n", "note.add"), made("l", order="o", total=101)]
    (tmp_path / "log.jsonl").write_bytes(b"\n".join(wire.encode(each)[wire.DATA] for each in events))
    done = call("coverage", "log.jsonl", "--rules", "rules", "--json")
    found = json.loads(done.out)
    assert (done.code, found["events"], found["matched"], found["copies"]) == (0, 3, 2, 1)
    assert found["unmatched"][0]["example"] == "n"
    assert call("coverage", "log.jsonl", "--rules", "rules", "--fail-under", "67").code == 1
    assert call("coverage", "log.jsonl", "--rules", "rules", "--fail-under", "66").code == 0
    for name, content in (("empty.jsonl", b""), ("bad.jsonl", b"{}\n"), ("deep.jsonl", b"[" * 100_000)):
        (tmp_path / name).write_bytes(content)
        refused = call("coverage", name, "--rules", "rules")
        assert (refused.code, name in refused.err) == (2, True)
    assert call("coverage", "missing.jsonl", "--rules", "rules").code == 2


# Kafka


async def aiter_fresh(follower: LogFollower, told: list[str]) -> AsyncIterator[Entry]:
    for _ in range(3):
        for _, entry in await follower.fresh(lambda _, what: told.append(what)):
            yield entry


@pytest.mark.soak
def test_on_kafka_the_same_is_told(call: Call, url: str, kafka_url: str) -> None:
    log = Log(call, kafka_url, url)
    log.push()
    [fine] = log.emit(made("fine", **WHOLE))
    [copy] = log.emit(made("fine", **WHOLE))
    [failed] = log.emit(made("failed", order="o3", divisor=0))
    log.append({b"x": b"y"})
    assert log.json("events", "why", fine)["state"] == "waiting"
    log.apply()
    assert [each["kind"] for each in log.tail() if each["partition"] == int(fine.split(":")[0])] == [
        "activation", "event", "event", "event", "invalid",
    ]  # fmt: skip
    why = log.json("events", "why", "fine")
    assert (why["position"], why["copies"], set(outcomes(why).values())) == (fine, [copy], {"applied"})
    why = log.json("events", "why", failed)
    assert outcomes(why) == {"order": "applied", "ratio": "dead_letter"}
    assert {each["reason"] for each in why["dead_letters"]} == {"query_error", "skipped"}

    async def followed() -> None:
        async with contextlib.aclosing(log.bus()) as bus:
            follower = LogFollower(bus, None)
            told: list[str] = []
            read = [entry async for entry in aiter_fresh(follower, told)]
            letter = await letter_with(bus.dead_letters, f"{failed}:orders/ratio")
            assert letter is not None
            assert (await retry(bus, letter)).events == 1  # a transaction leaves a record without an event
            await bus.rules.activate(ALL_APPS, (await bus.rules.activations())[0].digest)
            read += [entry async for entry in aiter_fresh(follower, told)]
            assert (len(read), told) == (4 + 4 + 1 + 4, [])

    asyncio.run(followed())
    [again] = log.json("events", "show", "failed")["retries"]
    assert log.json("events", "why", again["position"])["kind"] == "retry"
    found = log.json("coverage")
    assert (found["events"], found["copies"], found["retries"], found["invalid"]) == (2, 1, 1, 1)
    for wrong in ("0:5-0", "0:999999999999999999", "77:1"):
        assert "no event with the id" in log.run("events", "show", wrong, code=2)
