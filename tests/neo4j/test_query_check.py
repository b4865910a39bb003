"""Queries that the graph server would refuse at every event are refused before the first one, on both graph servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import redis.asyncio as redis
from tests.services.buses import applied
from tests.services.environment import clean_environment
from tests.services.fixtures import Logs, events_of
from tests.services.layouts import spread
from tests.services.neo4j import Neo4jServer
from tests.services.waiting import until

from graphweft import Client
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import Event, GraphUnavailable, QueryFailed, channels
from graphweft_rules import RulesError
from graphweft_rules.cypher.query import parse
from graphweft_rules.files.lint import workflows
from graphweft_workers.drivers.embedded.server import EmbeddedServer
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.engine.plan.digest import read_digest
from graphweft_workers.features.episodes.mutations import EpisodeMutations
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.processes.hosting import injection_app, mutation_app
from graphweft_workers.reports.delivery import send
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring.query_check import QueryFindings, check_queries

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
APPS = ("acme", "globex")
RULES = """\
version: "1.0"
mutation_rules:
  - name: first
    events: ["agent.turn_complete"]
    mutations:
      - id: sound
        cypher: "MERGE (a:Agent {name: $agent}) SET a.turns = coalesce(a.turns, 0) + 1"
        params: {agent: $event.agent_name}
  - name: second
    events: ["agent.turn_complete"]
    mutations:
      - id: checked
        cypher: |
          MUTATION
        params: {id: $event.agent_name}
injection_rules:
  - name: third
    agents: ["*"]
    queries:
      - id: checked
        cypher: |
          INJECTION
        params: {id: $context.user_id}
        inject_as: checked
"""
SOUND = "MATCH (n:A {id: $id}) RETURN n.x"
SOUND_WRITE = "MERGE (n:A {id: $id}) SET n.x = 1"


@dataclass(frozen=True)
class Fault:
    """A query that is wrong at ``^``, on Neo4j at ``~`` where that is elsewhere; the mark is no part of it."""

    name: str
    mutation: str
    injection: str
    said: str


FAULTS = (
    Fault(
        "SET ==",
        "MATCH (n:A {id: $id})\nSET n.t = datetime(), n.x =^= 1",
        "MATCH (n:A {id: $id})\nWHERE n.x =^= 1 RETURN n.x",
        "Invalid input '='",
    ),
    Fault("DELETE of nothing", "MATCH (n:A {id: $id})\nDELETE^", "MATCH (n:A {id: $id})\nRETURN^", "Invalid input"),
    Fault("no colon", "MERGE (n:A {id ^$id}) SET n.x = 1", "MATCH (n:A {id ^$id}) RETURN n.x", "expected ':'"),
    Fault(
        "no such function",
        "/* é😀\n*/ MATCH (n:A {id: $id}) SET n.y = 'toUper', n.x = ^toUper($id)",
        "MATCH (n:A {id: $id}) // toUper\nRETURN n.x, date(), ^toUper(n.x)",
        "Unknown function 'toUper'",
    ),
    Fault(
        "no such variable",
        "MERGE (n:A {id: $id}) SET n.u = 'é😀', n.m = date(), ^m.x = 1, m.y = 2",
        "MATCH (n:A {id: $id})\nWITH n.x AS x\nRETURN x, ^n.y, n.z",
        "not defined",
    ),
    Fault(
        "too many arguments",
        "MATCH (n:A {id: $id}) SET n.a = toUpper($id), n.x = ^toUpper($id, 1)",
        "MATCH (n:A {id: $id}) RETURN ^toUpper(n.x, 1) AS x, toUpper($id) AS y",
        "toUpper",
    ),
    Fault(
        "MATCH behind CREATE",  # FalkorDB does not say where
        "^CREATE (n:A {id: $id})\n~MATCH (b:B {id: $id}) SET b.x = 1",
        "^MATCH (n:A {id: $id})\nRETURN ~n.x AS a, n.y AS a",
        "",
    ),
)
"""Lint finds none of them without a server."""


@dataclass(frozen=True)
class Backend:
    """One kind of server, with the graphs of two apps where it can have two."""

    name: str
    address: str
    make: Callable[[], GraphStore]


@pytest.fixture(params=["falkordb", "neo4j"])
def backend(request: pytest.FixtureRequest) -> Backend:
    if request.param == "falkordb":
        address = request.getfixturevalue("url")
        return Backend("falkordb", address, lambda: FalkorDBStore(address))
    server: Neo4jServer = request.getfixturevalue("neo4j_server")
    server.empty()
    return Backend("neo4j", server.uri, lambda: Neo4jStore(server.uri))


@pytest_asyncio.fixture
async def graph(backend: Backend) -> AsyncIterator[GraphStore]:
    async with contextlib.aclosing(backend.make()) as store:
        yield store


def unmarked(text: str, dialect: str) -> tuple[str, tuple[int, int]]:
    """Return a query without its marks, and the line and column of the mark that counts."""
    checkpoint = "~" if dialect == "neo4j" and "~" in text else "^"
    before = text[: text.index(checkpoint)].replace("^", "").replace("~", "").split("\n")
    return text.replace("^", "").replace("~", ""), (len(before), len(before[-1]) + 1)


def rules_of(folder: Path, *, mutation: str = SOUND_WRITE, injection: str = SOUND, workflow: str = "Support") -> Path:
    """Write a workflow whose queries stand in blocks, and return the file."""
    file = folder / workflow / "graph_injection.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = RULES
    for name, query in (("MUTATION", mutation), ("INJECTION", injection)):
        text = text.replace(name, query.replace("\n", "\n" + " " * 10))
    file.write_text(text)
    return file


def place_in(file: Path, query: str, place: tuple[int, int]) -> tuple[str, int, int]:
    """Return where a place in a query stands in its file."""
    first = query.split("\n", maxsplit=1)[0]
    lines = file.read_text().splitlines()
    number = next(number for number, line in enumerate(lines) if line.strip() == first.strip())
    return str(file), number + place[0], 10 + place[1]


async def checked(graph: GraphStore, *paths: Path) -> QueryFindings:
    return await check_queries(graph, [part for workflow in workflows(paths) for part in workflow.parts])


@pytest.mark.parametrize("kind", ["mutation", "injection"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
async def test_a_wrong_query_is_refused_with_its_place(
    backend: Backend, graph: GraphStore, tmp_path: Path, fault: Fault, kind: str
) -> None:
    query, place = unmarked(getattr(fault, kind), backend.name)
    # Two workflows with the same mistake: each file is named, and the sound query beside it is not.
    files = [rules_of(tmp_path, workflow=name, **{kind: query}) for name in ("Sales", "Support")]
    found = await checked(graph, *files)
    assert [(f.place.file, f.place.line, f.place.column) for f in found.findings] == [
        place_in(file, query, place) for file in files
    ]
    for finding in found.findings:
        assert (finding.level, finding.code) == ("error", "server-refused")
        assert fault.said.lower() in finding.message.lower()
        assert len(str(finding).splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["MATCH (n:A {id: $id} RETURN n.x", "MATCH (n:A {id: $id}) RETURN coalesce(n.x, (1 + 2)"]
)
async def test_what_lint_finds_without_a_server_the_server_finds_too(graph: GraphStore, text: str) -> None:
    query = parse(text, role="injection")
    assert [problem.code for problem in query.problems] == ["unbalanced"]
    refusal = await graph.check_query(query)
    assert refusal is not None
    assert refusal.fails


async def test_calls_of_procedures_that_do_not_fit_are_refused(
    backend: Backend, graph: GraphStore, tmp_path: Path
) -> None:
    name = {"falkordb": "db.idx.fulltext.queryNodes", "neo4j": "db.index.fulltext.queryNodes"}[backend.name]
    sound = f"CALL {name}('NoSuchIndex', $id) YIELD node, score RETURN node.x, score"
    assert (await checked(graph, rules_of(tmp_path, injection=sound))).findings == ()
    for wrong, place in ((sound.replace(", $id", ""), 6), (sound.replace("score", "rank"), 6)):
        file = rules_of(tmp_path, injection=wrong)
        [finding] = (await checked(graph, file)).findings
        assert (finding.level, finding.place.line) == ("error", place_in(file, wrong, (1, place))[1])


@pytest.mark.parametrize(
    "text", ["RETURN apoc.text.join(['a'], 'b') AS x", "CALL apoc.path.subgraphNodes($id, {}) YIELD node RETURN node"]
)
async def test_what_a_plugin_may_bring_is_a_warning(graph: GraphStore, tmp_path: Path, text: str) -> None:
    found = await checked(graph, rules_of(tmp_path, injection=text))
    assert [finding.level for finding in found.findings] == ["warning"]


@pytest.mark.parametrize(
    "text",
    [
        "MATCH (n:A) RETURN n.x SKIP $id LIMIT $id",
        "MATCH (n:A) RETURN n.x / $id, toUpper($id), date($id), $id[0], size($id), range(0, $id)",
        "MATCH (n:A) WHERE n.x IN $id RETURN n.x ORDER BY n.x DESC",
        "UNWIND $id AS row MATCH (n:A {id: row.id}) RETURN n.x, row['y']",
        "WITH $id AS id MATCH (n:A {id: id}) RETURN n.x",
    ],
)
async def test_what_depends_on_values_is_not_judged(graph: GraphStore, tmp_path: Path, text: str) -> None:
    assert (await checked(graph, rules_of(tmp_path, injection=text))).findings == ()


WRITES = (
    "CREATE (a:A {id: $id, at: datetime(), on: date(), n: timestamp(), u: randomUUID(), l: localdatetime()})",
    "MERGE (a:A {id: $id}) ON CREATE SET a.n = 1 ON MATCH SET a.n = a.n + 1",
    "MATCH (a:A {id: $id}) OPTIONAL MATCH (a)-[r:KNOWS]->(b:B) SET a.x = coalesce(b.x, r.x)",
    "MERGE (a:A {id: $id}) MERGE (b:B {id: $id}) MERGE (a)-[r:KNOWS {x: 1}]->(b) SET r.n = coalesce(r.n, 0) + 1",
    "MATCH (a:A {id: $id}) WITH a WHERE a.x > 1 SET a += $map, a:Big REMOVE a.y",
    "MATCH (a:A {id: $id}) DETACH DELETE a",
    "MATCH (a:A {id: $id})-[r:KNOWS]->(b:B) DELETE r",
    "UNWIND $list AS item MERGE (a:A {id: item.id}) SET a.x = item.x // the last\n",
    "MATCH (a:A {id: $id}) FOREACH (x IN $list | SET a.x = x)",
    "MATCH (a:A) WITH count(a) AS c MERGE (s:Sum {id: $id}) SET s.c = c RETURN s.c",
    "MATCH (a:A {id: $id}) CREATE (b:B) SET b = $map /* all */ ;",
    "MATCH (a:A) WITH a ORDER BY a.x DESC SKIP 1 LIMIT 5 SET a.seen = true",
    "MATCH (a:A {id: $id}) SET a.v = vecf32($list), a.d = CASE WHEN $id = 'x' THEN 1 ELSE 2 END",
    "CALL { MATCH (a:A) RETURN max(a.x) AS x } MERGE (s:Sum {id: $id}) SET s.x = x",
    "WITH $id AS id MERGE (a:A {id: id}) SET a.x = size([x IN $list WHERE x > 1 | x * 2])",
    "MATCH (a:A {id: $id}) SET a.x = 1 WITH a MATCH (b:B {id: a.x}) SET b.y = 1 WITH a, b CREATE (a)-[:R]->(b)",
)
READS = (
    "MATCH p = (a:A {id: $id})-[:KNOWS*1..3]->(b) RETURN nodes(p), length(p)",
    "MATCH (a:A) WHERE NOT (a)-[:KNOWS]->() AND a.x IS NOT NULL RETURN DISTINCT a.x AS x ORDER BY x LIMIT 3",
    "MATCH (a:A) RETURN a.x AS x UNION ALL MATCH (b:B) RETURN b.x AS x",
    "MATCH (a:A) RETURN a {.id, .x, at: datetime()} AS a, collect(a.x)[..2], any(x IN a.l WHERE x = $id)",
    "MATCH (a:A) WHERE a.name STARTS WITH $id AND a.n CONTAINS 'x' RETURN reduce(n = 0, x IN a.l | n + x), labels(a)",
    "UNWIND range(0, 3) AS i OPTIONAL MATCH (a:A {id: i}) WITH i, count(a) AS c WHERE c > 0 RETURN i, c",
    "MATCH (a)-[r:KNOWS|LIKES]-(b) RETURN type(r), id(a), keys(b)",
)


async def test_sound_queries_of_every_kind_are_taken(graph: GraphStore, tmp_path: Path) -> None:
    for number, text in enumerate(WRITES):
        query = parse(text, role="mutation")
        assert await graph.check_query(query, query.batch_query(graph.dialect)) is None, text
        rules_of(tmp_path, workflow=f"W{number}", mutation=text.replace("$list", "$id").replace("$map", "$id"))
    for number, text in enumerate(READS):
        assert await graph.check_query(parse(text, role="injection")) is None, text
        rules_of(tmp_path, workflow=f"R{number}", injection=text)
    found = await checked(graph, tmp_path)
    assert (found.count, found.findings) == (len(WRITES) + len(READS) + 3, ())


async def test_rules_of_examples_and_pages_are_taken(graph: GraphStore, tmp_path: Path) -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    blocks = [block for page in pages for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    for number, block in enumerate(blocks):
        (tmp_path / f"_{number}").mkdir()
        text = "\n".join(line for line in block.splitlines() if not line.startswith("extends:"))
        (tmp_path / f"_{number}/graph_injection.yaml").write_text(text)
    fixtures = ROOT / "tests/fixtures/contract"
    found = await checked(graph, ROOT / "examples", ROOT / "benchmarks/workflows", fixtures, tmp_path)
    assert found.findings == ()
    assert found.count > 40


@pytest.mark.long("neo4j")
async def test_mutations_of_packs_are_taken(graph: GraphStore) -> None:
    found = await check_queries(graph, [*MemoryMutations().mutations, *EpisodeMutations().mutations])
    assert found.findings == ()
    assert found.count > 20


async def test_retrieval_queries_are_checked_behind_their_search(graph: GraphStore, tmp_path: Path) -> None:
    rules = """\
injection_rules:
  - name: notes
    agents: ["*"]
    queries:
      - id: notes
        inject_as: notes
        search:
          index_name: notes
          query: $context.messages
          retrieval_query: |
            MATCH (node)-[:FROM]->(d:Document)
            RETURN node.text AS text, score, {name}.name AS document
            ORDER BY score DESC
"""
    file = tmp_path / "Support/graph_injection.yaml"
    file.parent.mkdir()
    file.write_text(rules.replace("{name}", "d"))
    assert await checked(graph, file) == QueryFindings(count=1, findings=())
    file.write_text(rules.replace("{name}", "doc"))
    [finding] = (await checked(graph, file)).findings
    assert (finding.place.line, finding.place.column) == (12, 46)


async def test_a_query_that_is_folded_is_named_where_it_begins(graph: GraphStore, tmp_path: Path) -> None:
    file = rules_of(tmp_path, injection="MATCH (n:A {id: $id})\nRETURN m.x")
    file.write_text(
        file.read_text().replace(
            "cypher: |\n          MATCH (n:A {id: $id})", "cypher: >\n          MATCH (n:A {id: $id})"
        )
    )
    [finding] = (await checked(graph, file)).findings
    assert (finding.place.line, finding.place.column) == (21, 17)


async def test_graphs_of_apps_are_left_alone(backend: Backend, graph: GraphStore, tmp_path: Path) -> None:
    apps = APPS if backend.name == "falkordb" else APPS[:1]
    for app in apps:
        await graph.prepare(app, [])
        await graph.progress(app, 0)
    before = [await read_digest(graph, app) for app in apps]
    await checked(graph, rules_of(tmp_path, mutation="MERGE (n:A {id: $id}) SET m.x = 1"))
    await checked(graph, rules_of(tmp_path, mutation="MATCH (n:A {id: $id}) DETACH DELETE n"))
    assert [await read_digest(graph, app) for app in apps] == before
    if backend.name == "falkordb":
        assert isinstance(graph, FalkorDBStore)
        assert await graph.apps() == sorted(apps)
        async with redis.Redis.from_url(backend.address, decode_responses=True) as client:
            names = await client.execute_command("GRAPH.LIST")
            assert set(names) == {channels.GRAPH_CHECK, *(f"mozaiks_{app}" for app in apps)}
            assert (await client.execute_command("GRAPH.QUERY", channels.GRAPH_CHECK, "MATCH (n) RETURN n"))[1] == []


async def test_a_server_for_each_app_cannot_be_asked(tmp_path: Path) -> None:
    async with contextlib.aclosing(Neo4jStore("neo4j://{app_id}.example:7687")) as store:
        with pytest.raises(QueryFailed, match="a server per app"):
            await checked(store, rules_of(tmp_path))


async def test_a_server_that_is_away_is_no_finding(tmp_path: Path) -> None:
    for store in (FalkorDBStore(f"unix://{tmp_path}/none"), Neo4jStore("bolt://127.0.0.1:9")):
        async with contextlib.aclosing(store):
            with pytest.raises(GraphUnavailable):
                await checked(store, rules_of(tmp_path))


WRONG = "MERGE (n:A {id: $id}) SET n.x == 1"
WRONG_READ = "MATCH (n:A {id: $id})\nRETURN m.x"


def settings_of(backend: Backend, bus_url: str, folder: Path, **more: Any) -> Settings:
    return Settings.load(bus_url=bus_url, graph_url=backend.address, rules=folder, partitions=2, order="chat", **more)


async def turns(url: str, *apps: str) -> None:
    """Publish one turn of two chats of each app."""
    transport = RedisTransport(url, new=spread(2))
    try:
        await send(
            transport,
            (
                Event.create(
                    "agent.turn_complete",
                    app_id=app,
                    chat_id=chat,
                    workflow="Support",
                    data={"agent_name": "helper", "success": True},
                )
                for app in apps
                for chat in ("one", "two", "three", "four")
            ),
        )
    finally:
        await transport.aclose()


async def lag(bus: Bus) -> int:
    return sum(partition.lag for partition in await bus.partitions.status())


async def test_worker_and_responder_do_not_start_with_a_query_that_is_refused(
    backend: Backend, bus: Bus, url: str, tmp_path: Path
) -> None:
    await turns(url, APPS[0])
    file = rules_of(tmp_path, mutation=WRONG, injection=WRONG_READ)
    settings = settings_of(backend, url, tmp_path)
    places = {place_in(file, WRONG, (1, 32)), place_in(file, "RETURN m.x", (1, 8))}
    for app in (mutation_app, injection_app):
        with pytest.raises(RulesError) as raised:
            await app(settings).run()
        found = [finding.place for finding in raised.value.findings]
        assert {(place.file, place.line, place.column) for place in found} == places
    assert list(await bus.rules.activations()) == []
    assert await lag(bus) == 4
    async with contextlib.aclosing(backend.make()) as graph:
        assert (await graph.read(APPS[0], "MATCH (n) RETURN n", {}, timeout_s=120)).rows == ()


async def test_rules_with_a_query_of_another_role_that_is_refused_do_not_get_into_the_log(
    backend: Backend, bus: Bus, url: str, tmp_path: Path
) -> None:
    await turns(url, APPS[0])
    rules_of(tmp_path, injection=WRONG_READ)
    with pytest.raises(RulesError, match="server-refused"):
        await mutation_app(settings_of(backend, url, tmp_path)).run()
    assert await lag(bus) == 4
    assert list(await bus.rules.activations()) == []


async def command(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the command line to its end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "graphweft_workers.cli", *arguments),
        env=clean_environment(**environment),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.long("injection")
@pytest.mark.parametrize("role", ["mutation", "injection"])
async def test_the_process_of_a_role_ends_with_the_findings(url: str, tmp_path: Path, role: str) -> None:
    file = rules_of(tmp_path, mutation=WRONG, injection=WRONG_READ)
    environment = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": url, "GRAPHWEFT_RULES": str(tmp_path)}
    code, _, err = await command("run", role, **environment)
    assert code == 2
    assert f"error: {file}:" in err
    assert "server-refused" in err
    assert "Traceback" not in err


async def test_up_ends_with_the_findings_before_it_says_that_it_is_up(tmp_path: Path) -> None:
    file = rules_of(tmp_path / "rules", mutation=WRONG, injection=WRONG_READ)
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as data:
        code, out, err = await command("up", "--data", data, "--rules", str(tmp_path / "rules"))
        assert (code, out) == (2, "")
        for query, place in ((WRONG, (1, 32)), (WRONG_READ, (2, 8))):
            _, line, column = place_in(file, query, place)
            assert f"{file}:{line}:{column}: error server-refused" in err
        assert not (Path(data) / "processes.json").exists()


@pytest.mark.soak("neo4j")
async def test_doctor_says_what_the_server_says(backend: Backend, url: str, tmp_path: Path) -> None:
    environment = {"GRAPHWEFT_BUS_URL": url, "GRAPHWEFT_GRAPH_URL": backend.address, "GRAPHWEFT_RULES": str(tmp_path)}
    rules_of(tmp_path)
    rules_of(tmp_path, workflow="Sales")
    _, out, _ = await command("doctor", "--json", **environment)
    [check] = [check for check in json.loads(out) if check["check"] == "queries"]
    assert (check["state"], check["found"]) == ("ok", "3 queries were checked by the server")
    file = rules_of(tmp_path, mutation=WRONG)
    code, out, _ = await command("doctor", "--json", **environment)
    [check] = [check for check in json.loads(out) if check["check"] == "queries"]
    assert (code, check["state"]) == (1, "fail")
    assert str(file) in check["found"]


@pytest.mark.soak("neo4j")
async def test_lint_asks_the_server_when_it_is_told_to(backend: Backend, tmp_path: Path) -> None:
    file = rules_of(tmp_path, mutation=WRONG)
    rules_of(tmp_path, workflow="Sales", injection="RETURN apoc.text.join([$id], 'b') AS x")
    note = "5 queries were not checked by a graph server: run `graphweft lint --server` to check them\n"
    assert await command("lint", str(tmp_path)) == (0, f"{note}0 errors, 0 warnings\n", "")
    assert await command("lint", "--json", str(tmp_path)) == (0, "[]\n", note)
    code, out, err = await command("lint", "--server", str(tmp_path), GRAPHWEFT_GRAPH_URL=backend.address)
    assert (code, err) == (1, "")
    assert f"{file}:14:42: error server-refused" in out
    assert out.endswith("a graph server checked 5 queries\n1 error, 1 warning\n")
    code, out, err = await command("lint", "--server", "--json", str(tmp_path), GRAPHWEFT_GRAPH_URL=backend.address)
    assert [finding["level"] for finding in json.loads(out)] == ["warning", "error"]
    assert (code, err) == (1, "")


async def test_lint_says_what_to_do_where_no_server_runs(tmp_path: Path) -> None:
    rules_of(tmp_path)
    code, _, err = await command("lint", "--server", str(tmp_path), "--data", str(tmp_path / "none"))
    assert code == 2
    assert "run `graphweft up" in err


@pytest.mark.parametrize("wrong", [False, True])
async def test_while_the_server_is_away_a_worker_waits_and_then_checks_first(
    bus: Bus, url: str, tmp_path: Path, logs: Logs, wrong: bool
) -> None:
    await turns(url, *APPS)
    rules_of(tmp_path, mutation=WRONG if wrong else SOUND_WRITE)
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        server = EmbeddedServer(Path(folder))
        address = f"unix://{server.socket}"
        app = mutation_app(Settings.load(bus_url=url, graph_url=address, rules=tmp_path, partitions=2, order="chat"))
        running = asyncio.create_task(app.run())
        await until(lambda: events_of(logs), lambda said: "query_check_waits" in said, beside=running)
        await server.start()
        try:
            if wrong:
                with pytest.raises(RulesError, match="server-refused"):
                    await running
                assert await lag(bus) == 8
            else:
                await applied(bus, worker=running)
                app.exit()
                await running
            async with contextlib.aclosing(FalkorDBStore(address)) as graph:
                assert await graph.apps() == ([] if wrong else sorted(APPS))
        finally:
            await server.stop()


async def test_a_worker_that_waits_for_the_server_can_be_stopped(url: str, tmp_path: Path, logs: Logs) -> None:
    rules_of(tmp_path)
    for make in (mutation_app, injection_app):
        logs.clear()
        app = make(
            Settings.load(bus_url=url, graph_url=f"unix://{tmp_path}/none", rules=tmp_path, partitions=2, order="chat")
        )
        running = asyncio.create_task(app.run())
        await until(lambda: events_of(logs), lambda said: "query_check_waits" in said, beside=running)
        app.exit()
        await running


async def test_a_server_that_lets_nobody_check_is_warned_of(bus: Bus, url: str, tmp_path: Path, logs: Logs) -> None:
    await turns(url, *APPS)
    rules_of(tmp_path)
    async with redis.Redis.from_url(url) as client:
        await client.execute_command("ACL", "SETUSER", "weft", "on", ">secret", "~*", "&*", "+@all", "-graph.explain")
    try:
        address = url.replace("unix://", "unix://weft:secret@")
        app = mutation_app(Settings.load(bus_url=url, graph_url=address, rules=tmp_path, partitions=2, order="chat"))
        running = asyncio.create_task(app.run())
        await applied(bus, worker=running)
        app.exit()
        await running
        [said] = [entry["error"] for entry in logs if entry["event"] == "queries_not_checked"]
        assert "GRAPH.EXPLAIN" in said
        assert "secret" not in said
    finally:
        async with redis.Redis.from_url(url) as client:
            await client.execute_command("ACL", "DELUSER", "weft")


@pytest.mark.parametrize("wrong", [False, True])
async def test_while_the_server_is_away_a_responder_answers_and_checks_later(
    url: str, tmp_path: Path, wrong: bool
) -> None:
    rules_of(tmp_path, injection=WRONG_READ if wrong else SOUND)
    with tempfile.TemporaryDirectory(prefix="graphweft-test-") as folder:
        server = EmbeddedServer(Path(folder))
        app = injection_app(Settings.load(bus_url=url, graph_url=f"unix://{server.socket}", rules=tmp_path))
        running = asyncio.create_task(app.run())
        async with Client(url, app_id=APPS[0], workflow="Support") as client:

            async def missing() -> list[str]:
                reply = await client.context(agent="A", chat_id="c", context={"user_id": "u"}, budget_ms=120_000)
                return [each.reason for each in reply.missing]

            assert await missing() == ["graph_unavailable"]
            await server.start()
            try:
                if wrong:
                    with pytest.raises(RulesError, match="server-refused"):
                        await running
                else:
                    await until(missing, lambda reasons: not reasons, beside=running)
                    app.exit()
                    await running
            finally:
                await server.stop()
