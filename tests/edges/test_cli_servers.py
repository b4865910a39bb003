"""The command line on Kafka and Neo4j: every command works, or says what to do."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import neo4j
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from tests.edges.test_cli import BROKEN, MENDED, SUPPORT, Call, call, checks, clean_environment, event, turn
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import until_sync

from graphweft_contracts import channels

__all__ = ("call",)  # a fixture

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

RUNS = Path(__file__).parents[1] / "fixtures/imports/support.jsonl"
ASK = ("context", "--app", "shop", "--workflow", "Support", "--agent", "Ann", "--chat", "new")
NOWHERE = {"GRAPHWEFT_BUS_URL": "kafka://127.0.0.1:1", "GRAPHWEFT_GRAPH_URL": "bolt://127.0.0.1:1"}


@pytest.fixture
def database(neo4j_server: Neo4jServer) -> str:
    """The server's only database, of no app."""
    with neo4j.GraphDatabase.driver(neo4j_server.uri) as driver:
        driver.execute_query("MATCH (n) DETACH DELETE n")
    return neo4j_server.uri


@pytest.fixture
def servers(kafka_url: str, database: str, tmp_path: Path) -> dict[str, str]:
    """Settings that name both, and rules."""
    for name, text in {"Support": SUPPORT, "Numbers": BROKEN}.items():
        (tmp_path / "rules" / name).mkdir(parents=True)
        (tmp_path / "rules" / name / "graph_injection.yaml").write_text(text)
    rules = str(tmp_path / "rules")
    return {"GRAPHWEFT_BUS_URL": kafka_url, "GRAPHWEFT_GRAPH_URL": database, "GRAPHWEFT_RULES": rules}


@contextmanager
def worker(servers: Mapping[str, str], role: str = "mutation") -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "graphweft_workers.cli", "run", role],
        env=clean_environment(**servers), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "Traceback" not in output


def asked(bootstrap: str, question: Callable[[Any], Awaitable[Any]]) -> Any:
    async def ask() -> Any:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            return await question(admin)
        finally:
            await admin.close()

    return asyncio.run(ask())


@contextmanager
def topics_made(url: str, topics: list[NewTopic]) -> Generator[None]:
    """Make topics, and wait until the broker lists them. At the end, take their settings away.

    Otherwise, a busy broker may give these settings to the next topic with the same name.
    """

    async def make(admin: Any) -> None:
        await admin.create_topics(topics)

    asked(url.removeprefix("kafka://"), make)
    names = {topic.name for topic in topics}
    until_sync(
        lambda: set(asked(url.removeprefix("kafka://"), lambda admin: admin.list_topics())),
        lambda found: names <= found, why=f"the broker lists {names}",
    )  # fmt: skip

    async def reset(admin: Any) -> None:
        found = [ConfigResource(ConfigResourceType.TOPIC, name, configs={}) for name in names]
        for answer in await admin.alter_configs(found):
            assert not any(code for code, *_ in answer.resources), answer

    try:
        yield
    finally:
        asked(url.removeprefix("kafka://"), reset)


@pytest.mark.soak
def test_events_go_in_and_the_graph_comes_out(call: Call, servers: dict[str, str], tmp_path: Path) -> None:
    bootstrap = servers["GRAPHWEFT_BUS_URL"].removeprefix("kafka://")
    done = call("doctor", "--json", **servers)
    before = checks(done)
    states = {name: check["state"] for name, check in before.items() if check["state"] != "ok"}
    assert (done.code, states) == (1, {"bus topic": "warn", "workers": "fail", "responders": "fail"})
    assert "graphweft run mutation" in before["bus topic"]["advice"]
    topics = asked(bootstrap, lambda admin: admin.list_topics())
    assert channels.EVENTS_TOPIC not in topics, "to look must not make what is looked at"

    done = call("query", "--app", "shop", "MATCH (n) RETURN n", **servers)
    assert (done.code, done.out) == (0, "")
    assert "'shop' has no graph yet" in done.err
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join([turn("1", app="shop"), turn("2", app="shop", agent="Bob"), turn("3", app="shop")]))
    with worker(servers):
        applied = "3 events sent\n3 applied, 0 skipped, 0 failed\n"
        assert call("emit", str(file), "--wait", **servers).out == applied
        assert "3 were on the bus before" in call("emit", str(file), "--wait", **servers).out
        imported = ("import", "openai-chat", str(RUNS), "--app", "shop", "--workflow", "Other", "--wait", "--json")
        without = json.loads(call(*imported, **servers).out)
        assert (without["sent"], without["applied"], without["skipped"]) == (15, 0, 15)
        status = json.loads(call("status", "--json", **servers).out)
        assert [partition["id"] for partition in status["partitions"]] == list(range(64))
        assert status["lag"] == 0
        assert [(cause["reason"], cause["events"]) for cause in status["without_effect"]] == [("no_rules", 15)]
        assert all(partition["owner"] for partition in status["partitions"])
        done = call("doctor", "--json", **servers)
        found = checks(done)
        # One broker has one copy.
        states = {name: check["state"] for name, check in found.items() if check["state"] != "ok"}
        assert (done.code, states) == (1, {
            "bus disk": "warn", "responders": "fail", "dead letters": "warn", "skipped": "warn",
        })  # fmt: skip
        assert "4 partitions" in found["bus topic"]["found"]
        assert "Neo4j 5" in found["graph"]["found"]
        assert "'shop'" in found["graph apps"]["found"]
    cypher = "MATCH (a:Agent) RETURN a.name AS name, a.turns AS turns ORDER BY name"
    rows = json.loads(call("query", "--app", "shop", cypher, "--json", **servers).out)["rows"]
    assert rows == [{"name": "Ann", "turns": 2}, {"name": "Bob", "turns": 1}]
    assert "Ann" in call("query", "--app", "shop", cypher, **servers).out
    digest = json.loads(call("digest", "--app", "shop", "--json", **servers).out)
    assert (digest["nodes"], digest["relationships"]) == (2, 0)
    assert call("digest", "--app", "shop", **servers).out == digest["digest"] + "\n"
    for query, said in {"CREATE (n:Written)": "only reads", "MATC (n) RETURN n": "Invalid input"}.items():
        done = call("query", "--app", "shop", query, **servers)
        assert (done.code, done.out) == (2, "")
        assert said in done.err
    for refused in (("query", "--app", "other", "RETURN 1"), ("digest", "--app", "other")):
        done = call(*refused, **servers)
        assert (done.code, done.out) == (2, "")
        assert "give each app a server of its own" in done.err
    with worker(servers, "injection"):
        while found["responders"]["state"] != "ok":
            done = call("doctor", "--json", **servers)
            found = checks(done)
        states = {name: check["state"] for name, check in found.items() if check["state"] != "ok"}
        assert (done.code, states) == (1, {
            "bus disk": "warn", "workers": "fail", "dead letters": "warn", "skipped": "warn",
        })  # fmt: skip
        assert "nobody reads any of the 64 partitions" in found["workers"]["found"]
        with worker(servers):
            while done.code:
                done = call("doctor", "--json", **servers)
            bad = {name for name, check in checks(done).items() if check["state"] != "ok"}
            assert bad == {"bus disk", "dead letters", "skipped"}


@pytest.mark.soak
def test_dead_letters_are_found_mended_and_retried(call: Call, servers: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    numbers = {"n1": 5, "n2": 7, "n3": 9}
    file.write_text("\n".join(event(id, app="shop", type="number.add", number=n) for id, n in numbers.items()))
    with worker(servers):
        emitted = call("emit", str(file), "--wait", **servers)
        assert (emitted.code, "0 applied, 0 skipped, 3 failed" in emitted.out) == (1, True)
    letters = json.loads(call("dlq", "list", "--json", **servers).out)
    assert [letter["event_id"] for letter in letters] == ["n1", "n2", "n3"]
    first, second, _ = (letter["id"] for letter in letters)
    assert first.partition(":")[0] in call("dlq", "list", **servers).out
    shown = json.loads(call("dlq", "show", first, "--json", **servers).out)
    assert json.loads(shown["fields"]["data"])["data"] == {"number": 5}
    assert checks(call("doctor", "--json", **servers))["dead letters"]["advice"] == "graphweft dlq list"
    dropped = call("dlq", "drop", second, "--json", **servers)
    assert json.loads(dropped.out) == {"dropped": 1, "left": 0, "kept": [], "unknown": []}
    (Path(servers["GRAPHWEFT_RULES"]) / "Numbers/graph_injection.yaml").write_text(MENDED)
    pushed = call("rules", "push", "--json", **servers)  # a retry follows the rules that are active at its place
    assert json.loads(pushed.out)["changes"]["changed"] == ["Numbers/graph_injection.yaml"]
    assert call("dlq", "retry", first, **servers).out == "1 event is back on the bus\n"
    done = call("dlq", "retry", first, "--json", **servers)
    assert (done.code, json.loads(done.out)) == (2, {"retried": 0, "left": 0, "kept": [], "unknown": [first]})
    assert call("dlq", "retry", "--all", **servers).out == "1 event is back on the bus\n"
    file.write_text(event("n4", app="shop", type="number.add", number=1))
    with worker(servers):
        assert call("emit", str(file), "--wait", **servers).code == 0  # of the same chat, so behind those
    rows = json.loads(call("query", "--app", "shop", "MATCH (s:Sum) RETURN s.first, s.total", "--json", **servers).out)
    assert rows["rows"] == [{"s.first": 4, "s.total": 15}]
    assert json.loads(call("dlq", "list", "--json", **servers).out) == []


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (("status",), "GRAPHWEFT_BUS_URL"),
        (("dlq", "list"), "GRAPHWEFT_BUS_URL"),
        (("dlq", "show", "x"), "GRAPHWEFT_BUS_URL"),
        (("dlq", "retry", "x"), "GRAPHWEFT_BUS_URL"),
        (("dlq", "drop", "x"), "GRAPHWEFT_BUS_URL"),
        (("query", "--app", "a", "RETURN 1"), "GRAPHWEFT_GRAPH_URL"),
        (("digest", "--app", "a"), "GRAPHWEFT_GRAPH_URL"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_when_nothing_answers_the_next_step_is_told(call: Call, arguments: tuple[str, ...], variable: str) -> None:
    done = call(*arguments, **NOWHERE)
    assert (done.code, done.out) == (2, "")
    [line] = done.err.splitlines()
    assert line.startswith("error: ")
    assert variable in line
    assert "graphweft doctor" in line
    assert "data folder" not in line


def test_drivers_say_nothing_beside_our_own_words(tmp_path: Path) -> None:
    # In a process of its own: pytest takes what Python prints where nobody handles a log record.
    done = subprocess.run(
        [sys.executable, "-m", "graphweft_workers.cli", "status"],
        env=clean_environment(**NOWHERE), cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")


def test_sending_to_nothing_can_be_given_up(call: Call, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text(turn("1", app="shop"))
    imported = ("import", "openai-chat", str(RUNS), "--app", "shop", "--workflow", "Support")
    for arguments in (("emit", str(file)), imported):
        done = call(*arguments, "--give-up-after", "0", **NOWHERE)
        assert (done.code, done.out) == (1, "")
        assert "it is safe to run again" in done.err
        assert "graphweft up" not in done.err
        lines = [line for line in done.err.splitlines() if "of messages left out" not in line]
        assert [line.partition(" ")[0] for line in lines] == ["the", "error:"]


def test_doctor_advises_when_nothing_answers(call: Call) -> None:
    done = call("doctor", "--json", **NOWHERE)
    found = checks(done)
    assert done.code == 1
    assert done.err == ""
    assert {name for name, check in found.items() if check["state"] == "fail"} == {"bus", "graph"}
    assert "GRAPHWEFT_BUS_URL" in found["bus"]["advice"]
    assert "GRAPHWEFT_GRAPH_URL" in found["graph"]["advice"]
    assert "data" not in found["bus"]["advice"] + found["graph"]["advice"]
    one = checks(call("doctor", "--json", GRAPHWEFT_BUS_URL=NOWHERE["GRAPHWEFT_BUS_URL"]))
    assert one["graph"]["advice"] == "set GRAPHWEFT_GRAPH_URL too"
    one = checks(call("doctor", "--json", NEO4J_URI=NOWHERE["GRAPHWEFT_GRAPH_URL"]))
    assert one["bus"]["advice"] == "set GRAPHWEFT_BUS_URL too"
    assert "NEO4J_URI" in one["graph"]["advice"]


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (("status",), "kafka"),
        (("emit", "-"), "kafka"),
        (("query", "--app", "a", "RETURN 1"), "neo4j"),
        (("digest", "--app", "a"), "neo4j"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_a_driver_that_is_not_installed_is_named(tmp_path: Path, arguments: tuple[str, ...], extra: str) -> None:
    done = without_drivers(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'graphweft[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_names_drivers_that_are_not_installed(tmp_path: Path) -> None:
    done = without_drivers(tmp_path, "doctor", "--json")
    assert done.stderr == ""
    found = {check["check"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 1
    assert "graphweft[kafka]" in found["bus"]["found"]
    assert "graphweft[neo4j]" in found["graph"]["found"]


def without_drivers(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; sys.modules |= {'aiokafka': None, 'neo4j': None}; from graphweft_workers.main import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=clean_environment(**NOWHERE), cwd=folder, input="", capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip


@pytest.mark.soak
def test_doctor_finds_topics_that_would_lose_events(call: Call, kafka_url: str, database: str) -> None:
    def made(name: str, **settings: str) -> NewTopic:
        return NewTopic(name, 3, 1, topic_configs={key.replace("_", "."): value for key, value in settings.items()})

    topics = [
        made(channels.EVENTS_TOPIC, retention_ms="3600000", max_message_bytes="1000"),
        made(channels.DEAD_LETTERS_TOPIC, cleanup_policy="delete"),
    ]
    servers = {"GRAPHWEFT_BUS_URL": kafka_url, "GRAPHWEFT_GRAPH_URL": database}
    with topics_made(kafka_url, topics):
        done = call("doctor", "--json", **servers)
    found = checks(done)
    assert done.code == 1
    assert "3 partitions" in found["bus topic"]["found"]
    assert "retention.ms 3600000" in found["bus retention"]["found"]
    assert (found["bus retention"]["state"], found["bus event size"]["state"]) == ("warn", "warn")
    assert found["bus times"]["state"] == "fail"
    assert "message.timestamp.type=LogAppendTime" in found["bus times"]["advice"]
    assert found["dead letters topic"]["state"] == "fail"
    assert "graphweft run mutation" in found["workers"]["advice"]


@pytest.mark.soak
def test_doctor_finds_a_topic_that_is_compacted(call: Call, kafka_url: str) -> None:
    topic = NewTopic(channels.EVENTS_TOPIC, 1, 1, topic_configs={"cleanup.policy": "compact"})
    with topics_made(kafka_url, [topic]):
        found = checks(call("doctor", "--json", GRAPHWEFT_BUS_URL=kafka_url, GRAPHWEFT_GRAPH_URL="redis://127.0.0.1:1"))
    assert found["bus retention"]["state"] == "fail"
    assert "cleanup.policy=delete" in found["bus retention"]["advice"]
