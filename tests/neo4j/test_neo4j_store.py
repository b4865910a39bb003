"""What only the Neo4j store has to get right: tenants, logins, forms that do not compile, and other writers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString, cast

import neo4j
import pytest
import pytest_asyncio
from tests.chaos.proxy import Proxy
from tests.services.neo4j import Neo4jServer, sharing
from tests.services.virtual_time import VirtualClock
from tests.services.waiting import turns, until_answered

from graphweft_contracts import Fenced, GraphUnavailable, QueryFailed, Transient
from graphweft_rules.cypher.query import parse
from graphweft_workers.drivers.neo4j.dialect import NEO4J
from graphweft_workers.drivers.neo4j.statements import (
    MOVE,
    READ_CHECKPOINT,
    VALUES,
    database_name,
    fused,
    in_one_run,
    runs,
    shared,
)
from graphweft_workers.drivers.neo4j.store import Neo4jStore
from graphweft_workers.drivers.neo4j.timing import Neo4jTiming
from graphweft_workers.drivers.neo4j.url import join_neo4j_url
from graphweft_workers.ports.graph_store import START, Checkpoint, Write, WriteResult

pytestmark = pytest.mark.integration
APP = "shop"
END = Checkpoint(offset="1")


def execute(server: Neo4jServer, statement: str) -> list[list[Any]]:
    return server.run(statement)


@pytest.fixture
def server(neo4j_server: Neo4jServer) -> Neo4jServer:
    neo4j_server.empty()
    return neo4j_server


@pytest_asyncio.fixture
async def graph(server: Neo4jServer) -> AsyncIterator[Neo4jStore]:
    async with contextlib.aclosing(Neo4jStore(server.uri, write_timeout_ms=20_000)) as store:
        await store.progress(APP, 0)
        yield store


def write(text: str, *rows: dict[str, Any], before: Checkpoint = START, after: Checkpoint = END) -> Write:
    return Write(query=parse(text, role="mutation"), rows=rows or ({},), before=before, after=after)


def share(graph: Neo4jStore, *texts: str) -> None:
    """Let mutations share a statement as if they had been applied for a while."""
    graph._groups.join([form for text in texts if (form := parse(text, role="mutation").batch_query(NEO4J))])


async def test_locks_of_apps_are_kept_while_they_are_used(server: Neo4jServer, graph: Neo4jStore) -> None:
    """Apps come and go, and a store lives for months."""
    for number in range(3):
        await graph.progress(APP, number)
    writing = [asyncio.create_task(graph.apply(APP, number, [write("CREATE (:Thing)")])) for number in range(3)]
    seen: set[int] = set()
    while not all(each.done() for each in writing):
        seen.add(len(graph._writing))
        await turns()
    assert seen == {0, 1}  # all partitions of an app share one
    assert [(await each).count for each in writing] == [1, 1, 1]
    with pytest.raises(QueryFailed, match="holds the graph of another app"):
        await graph.progress("neighbour", 0)
    assert (len(graph._writing), len(graph._opening)) == (0, 0)
    assert execute(server, "MATCH (n:Thing) RETURN count(n)") == [[3]]


async def test_a_database_holds_one_app(server: Neo4jServer, graph: Neo4jStore) -> None:
    await graph.apply(APP, 0, [write("CREATE (:Private {x: 1})")])
    for store in (graph, Neo4jStore(server.uri)):
        for call in (
            store.progress("other", 0), store.prepare("other", []),
            store.read("other", "MATCH (n:Private) RETURN n", {}, timeout_s=120), anext(store.whole.nodes("other")),
            anext(store.whole.edges("other")),
        ):  # fmt: skip
            with pytest.raises(QueryFailed, match="holds the graph of another app, so app 'other' cannot") as refused:
                await call
            assert "shop" not in str(refused.value)
        await store.aclose()


async def test_of_two_apps_that_come_at_once_one_gets_the_database(server: Neo4jServer) -> None:
    stores = [Neo4jStore(server.uri) for _ in range(6)]
    calls = [store.progress(f"app{number % 2}", 0) for number, store in enumerate(stores)]
    came = await asyncio.gather(*calls, return_exceptions=True)
    assert sorted(isinstance(result, QueryFailed) for result in came) == [False] * 3 + [True] * 3
    for store in stores:
        await store.aclose()


async def test_a_graph_that_was_replaced_is_another_one(server: Neo4jServer, graph: Neo4jStore) -> None:
    execute(server, "MATCH (n) DETACH DELETE n")
    async with contextlib.aclosing(Neo4jStore(server.uri)) as other:
        await other.progress("other", 0)
        with pytest.raises(Fenced):
            await graph.apply(APP, 0, [write("CREATE (:Private {x: 1})")])
        assert execute(server, "MATCH (n:Private) RETURN n") == []
        with pytest.raises(QueryFailed):
            await graph.progress(APP, 0)


async def test_a_url_may_name_a_server_for_each_app(server: Neo4jServer) -> None:
    async with contextlib.aclosing(Neo4jStore(server.uri.replace("127.0.0.1", "127.0.0.{app_id}"))) as store:
        assert await store.check() == ""  # there is nobody to ask yet
        await store.progress("1", 0)
        assert execute(server, "MATCH (a:__App) RETURN a.app_id") == [["1"]]
        with pytest.raises(GraphUnavailable):  # the server listens at 127.0.0.1 alone
            await store.progress("2", 0)


@pytest.mark.parametrize(
    ("app_id", "template", "name"),
    [
        ("shop", "mozaiks_{app_id}", "mozaiks-shop"),
        ("shop-2", "{app_id}.graph", "shop-2.graph"),
        ("Shop", "mozaiks_{app_id}", "mozaiks-shop-"),
        ("a_b", "mozaiks_{app_id}", "mozaiks-a-b-"),
        ("x" * 64, "mozaiks_{app_id}", "mozaiks-xxx"),
    ],
)
def test_databases_have_names_that_neo4j_takes(app_id: str, template: str, name: str) -> None:
    made = database_name(app_id, template)
    assert made == name or (made.startswith(name) and name != "mozaiks-shop")
    assert len(made) <= 63


def test_apps_whose_names_differ_in_what_neo4j_does_not_take_have_two_databases() -> None:
    names = {database_name(app, "{app_id}-x") for app in ("abc", "ABC", "aBC", "a_c", "a-c")}
    assert len(names) == 5


@pytest.mark.parametrize(("app_id", "template"), [("1", "{app_id}"), ("x", "system-{app_id}"), ("a", "{app_id}")])
def test_a_name_that_neo4j_refuses_says_what_to_change(app_id: str, template: str) -> None:
    with pytest.raises(QueryFailed, match="GRAPHWEFT_GRAPH_TEMPLATE"):
        database_name(app_id, template)


async def test_a_database_that_is_not_there_is_named(server: Neo4jServer) -> None:
    async with contextlib.aclosing(Neo4jStore(f"{server.uri}/nowhere")) as store:
        for call in (store.check(), store.progress(APP, 0), store.read(APP, "RETURN 1", {}, timeout_s=5)):
            with pytest.raises(GraphUnavailable, match=r"nowhere.*create it"):
                await call


@pytest.fixture(scope="module")
def locked_server() -> Iterator[Neo4jServer]:
    """A server that wants to know who one is."""
    with tempfile.TemporaryDirectory(prefix="graphweft-login-") as folder:
        server = Neo4jServer(Path(folder), log_in=True)
        server.start()
        try:
            with neo4j.GraphDatabase.driver(server.uri, auth=("neo4j", "neo4j")) as driver:
                change = "ALTER CURRENT USER SET PASSWORD FROM 'neo4j' TO 'p:/@? word'"
                driver.execute_query(change, database_="system")
            yield server
        finally:
            server.kill()


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("login", ["", "neo4j:wrong-secret@", "nobody:wrong-secret@"])
async def test_a_login_that_is_wrong_says_what_to_set(locked_server: Neo4jServer, login: str) -> None:
    async with contextlib.aclosing(Neo4jStore(locked_server.uri.replace("://", f"://{login}"))) as store:
        with pytest.raises(GraphUnavailable, match="NEO4J_USERNAME and NEO4J_PASSWORD") as caught:
            await store.check()
        assert "wrong-secret" not in str(caught.value)
    async with contextlib.aclosing(
        Neo4jStore(locked_server.uri.replace("://", "://neo4j:p%3A%2F%40%3F%20word@"))
    ) as right:
        await right.progress(APP, 0)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("scheme", ["bolt", "neo4j"])
async def test_an_old_password_leaves_the_user_to_others_and_follows_its_file(
    locked_server: Neo4jServer, tmp_path: Path, scheme: str
) -> None:
    user, address = f"worker_{scheme}", locked_server.uri.replace("bolt://", f"{scheme}://")
    file = tmp_path / "password"
    file.write_text("first-secret")
    root = ("neo4j", "p:/@? word")
    url = join_neo4j_url(address, user=user, password="first-secret", password_file=str(file))

    async def ask(as_root: bool, statement: str, **given: str) -> list[dict[str, Any]]:
        auth = root if as_root else (user, given.pop("password"))
        async with neo4j.AsyncGraphDatabase.driver(address, auth=auth) as driver:
            return (await driver.execute_query(cast("LiteralString", statement), given, database_="system"))[0]

    await ask(True, f"CREATE USER {user} SET PASSWORD 'first-secret' CHANGE NOT REQUIRED")
    clock = VirtualClock()
    stores = [Neo4jStore(url, clock=clock) for _ in range(2)]
    try:
        for store in stores:
            await store.check()
        await ask(True, f"ALTER USER {user} SET PASSWORD 'second-secret'")
        for store in stores:  # a connection that is open stays good
            await store.check()
        for row in await ask(True, "CALL dbms.listConnections() YIELD connectionId, username"):
            if row["username"] == user:
                await ask(True, "CALL dbms.killConnection($id)", id=row["connectionId"])
        for _ in range(6):
            for store in stores:
                with pytest.raises(GraphUnavailable) as caught:  # the first one, perhaps, that its connection ended
                    await store.check()
            await ask(False, "SHOW CURRENT USER", password="second-secret")
        assert "goes on by itself" in str(caught.value)
        file.write_text("second-secret\n")
        for store in stores:
            await store.check()
    finally:
        for store in stores:
            await store.aclose()


NOT_TOGETHER = [
    "UNWIND [1, 2, 3] AS i WITH i LIMIT $p CREATE (:N {x: i})",
    "CREATE (n:N {x: 0}) CREATE (m:M $q) DELETE m",
    "MATCH (n:Nothing) WITH count(*) + $p AS c CREATE (:N {x: c})",
    "MATCH (n:Counter) CALL { WITH n CREATE (:N {x: $p}) }",
]


@pytest.mark.parametrize("text", NOT_TOGETHER)
async def test_what_cannot_share_a_query_runs_as_it_is(server: Neo4jServer, graph: Neo4jStore, text: str) -> None:
    execute(server, "CREATE (:Counter)")
    values = {name: {"p": 1, "q": {"x": 1}}[name] for name in parse(text, role="mutation").columns}
    assert await graph.apply(APP, 0, [write(text, values)]) == WriteResult(count=1)
    assert execute(server, "MATCH (n:N) RETURN count(n)") == [[1]]
    assert (await graph.progress(APP, 0)).checkpoint == END


async def test_a_form_that_the_server_does_not_compile_runs_row_by_row(server: Neo4jServer, graph: Neo4jStore) -> None:
    """The text does not tell; the store asks the server."""
    text = "CREATE (n:N) WITH n CALL (n) { MATCH (a:Nothing) WITH n, count(a) + $p AS c SET n.x = c }"
    assert parse(text, role="mutation").batch_query(NEO4J).mode == "ordered"
    assert await graph.apply(APP, 0, [write(text, {"p": 1}, {"p": 2})]) == WriteResult(count=1)
    assert execute(server, "MATCH (n:N) RETURN count(n)") == [[2]]


SHARED = [f"MERGE (n:N {{id: $id}}) SET n.log = coalesce(n.log, '') + '{letter}' + $x" for letter in "abcdefghij"] + [
    "MATCH (n:N {id: $id}) SET n.log = n.log + '+' + $x",
    "MATCH (n:N {id: $id}) DELETE n",
]
SINGLE = "MATCH (n:N {id: $id}) WITH n LIMIT $one SET n.log = n.log + '!' + $x"
REFUSED = (
    "MATCH (n:N {id: $id}) CALL (n) { OPTIONAL MATCH (m:Nothing) WITH n, count(m) + $one AS c "
    "SET n.log = n.log + '?' + $x }"
)


def mixed(seed: int, size: int) -> tuple[list[Write], dict[str, str]]:
    """Return writes of many mutations in a random order, and what is in the graph when they run in that order."""
    pick = random.Random(seed)
    texts = pick.sample([*SHARED, SINGLE, REFUSED], pick.randint(2, 14))
    writes: list[Write] = []
    logs: dict[str, str] = {}
    for number in range(size):
        places = {
            "before": writes[-1].after if writes else START,
            "after": Checkpoint(offset="", plan="p", done=number + 1),
        }
        if pick.random() < 0.1:
            writes.append(Write(**places))
            continue
        text = pick.choice(texts)
        rows = [
            {"id": f"n{pick.randint(0, 2)}", "x": str(pick.randint(0, 9)), "one": 1}
            for _ in range(1 if text == SINGLE else pick.randint(1, 4))
        ]
        for row in rows:
            name, x = str(row["id"]), str(row["x"])
            if text.startswith("MERGE"):
                logs[name] = logs.get(name, "") + text[text.index("+ '") + 3] + x
            elif text.endswith("DELETE n"):
                logs.pop(name, None)
            elif name in logs:
                logs[name] += {SHARED[-2]: "+", SINGLE: "!", REFUSED: "?"}[text] + x
        query = parse(text, role="mutation")
        writes.append(Write(query=query, rows=[{name: row[name] for name in query.columns} for row in rows], **places))
    return writes, logs


async def apply_all(graph: Neo4jStore, writes: Sequence[Write]) -> WriteResult:
    """Apply writes until one fails; a transaction ends behind a write that deletes."""
    count = 0
    while True:
        applied = await graph.apply(APP, 0, writes[count:])
        count += applied.count
        if applied.failure is not None or count == len(writes):
            return WriteResult(count=count, failure=applied.failure)


@pytest.mark.long("2", "3", "4", "5")
@pytest.mark.parametrize("seed", range(6))
async def test_writes_that_share_a_statement_take_effect_in_their_order(
    server: Neo4jServer, graph: Neo4jStore, seed: int
) -> None:
    writes, logs = mixed(seed, 60)
    sharing(graph, 2 * seed)  # they begin to share one after a while
    for part in (writes[:30], writes[30:]):
        assert await apply_all(graph, part) == WriteResult(count=30)
    assert dict(execute(server, "MATCH (n:N) RETURN n.id, n.log")) == logs
    assert (await graph.progress(APP, 0)).checkpoint == writes[-1].after


async def test_one_run_of_writes_takes_effect_like_several(server: Neo4jServer, graph: Neo4jStore) -> None:
    """A single run has a statement of its own, which has one level fewer for each row."""
    rows = [{"id": name, "x": "1"} for name in ("n0", "n1", "n0")]
    before, log = START, ""
    share(graph, *SHARED[:3])
    for number, order in enumerate(((0, 1, 2), (0, 1, 2), (2, 1, 0))):
        writes: list[Write] = []
        for index in order:
            after = Checkpoint(offset="", plan="p", done=10 * number + len(writes) + 1)
            writes.append(write(SHARED[index], *rows, before=before, after=after))
            before = after
            log += f"{'abc'[index]}1" * 2
        [part] = graph._groups.parts([(each, graph._form(each)) for each in writes])
        assert len(runs(part)) == (1 if order[0] == 0 else 3)
        assert await graph.apply(APP, 0, writes) == WriteResult(count=3)
    assert execute(server, "MATCH (n:N {id: 'n0'}) RETURN n.log") == [[log]]
    with pytest.raises(Fenced):
        await graph.apply(APP, 0, [write(SHARED[0], *rows)])
    assert execute(server, "MATCH (n:N {id: 'n0'}) RETURN n.log") == [[log]]


async def test_a_write_that_fails_among_others_is_the_one_that_is_named(server: Neo4jServer, graph: Neo4jStore) -> None:
    keep, count = "MERGE (n:N {id: $id}) SET n.x = $x", "MATCH (n:N {id: $id}) SET n.count = coalesce(n.count, 0) + 1"
    writes: list[Write] = []
    for number in range(10):
        row = {"id": "one", "x": {"no": "property"} if number == 6 else number}
        text = count if number % 2 else keep
        checkpoints = {"before": writes[-1].after if writes else START, "after": Checkpoint(offset=str(number))}
        writes.append(write(text, row if text == keep else {"id": "one"}, **checkpoints))
    applied = await graph.apply(APP, 0, writes)
    assert applied.count == 6
    assert applied.failure is not None
    assert execute(server, "MATCH (n:N) RETURN n.x, n.count") == [[4, 3]]
    assert (await graph.progress(APP, 0)).checkpoint == writes[5].after


@pytest.mark.parametrize("one_run", [True, False])
def test_a_statement_has_one_parameter(one_run: bool) -> None:
    """The server plans it anew for each size of a text or a list in a parameter, and for null, but not in a map."""
    forms = [form for text in SHARED[:3] if (form := parse(text, role="mutation").batch_query(NEO4J))]
    for text in (fused(forms, one_run=one_run), fused([]), shared(forms), in_one_run(forms), READ_CHECKPOINT, MOVE):
        assert set(re.findall(r"\$(\w+)", text)) == {VALUES}


async def test_a_row_that_is_refused_costs_one_transaction(server: Neo4jServer) -> None:
    proxy = Proxy(server.port)
    await proxy.start()
    text = "MERGE (n:N {id: $id}) SET n.share = 100 / $parts"
    costs: list[int] = []
    async with (
        contextlib.aclosing(proxy),
        contextlib.aclosing(Neo4jStore(f"bolt://127.0.0.1:{proxy.port}")) as graph,
    ):
        await graph.progress(APP, 0)
        share(graph, text)
        for parts in (4, 0, 0):
            before = proxy.requests
            applied = await graph.apply(APP, 0, [write(text, {"id": 1, "parts": parts}, before=START, after=START)])
            costs.append(proxy.requests - before)
            assert applied.count == (1 if parts else 0)
    assert execute(server, "MATCH (n:N) RETURN n.share") == [[25]]
    # The statement, and a reset of the connection; the first time, the server is also asked whether it compiles.
    assert costs[2] <= costs[0] + 1, costs


async def test_the_server_plans_a_write_once_that_is_first_explained(
    graph: Neo4jStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that is explained, with a parameter, is the one that runs when the write is tried by itself."""
    explained: set[str] = set()
    ran: set[str] = set()
    begin = neo4j.AsyncSession.run
    go_on = neo4j.AsyncTransaction.run

    async def in_session(session: Any, query: Any, parameters: Any = None, **more: Any) -> Any:
        text = getattr(query, "text", query)
        if text.startswith("EXPLAIN "):
            assert set(parameters or ()) == {VALUES}
            explained.add(text.removeprefix("EXPLAIN "))
        return await begin(session, query, parameters, **more)

    async def in_transaction(transaction: Any, query: Any, parameters: Any = None, **more: Any) -> Any:
        ran.add(query)
        return await go_on(transaction, query, parameters, **more)

    monkeypatch.setattr(neo4j.AsyncSession, "run", in_session)
    monkeypatch.setattr(neo4j.AsyncTransaction, "run", in_transaction)
    share, count = "MERGE (n:N {id: $id}) SET n.share = 100 / $parts", "MERGE (n:N {id: $id}) SET n.seen = true"
    middle = Checkpoint(offset="0")
    writes = [write(count, {"id": 1}, after=middle), write(share, {"id": 1, "parts": 0}, before=middle)]
    assert (await graph.apply(APP, 0, writes)).count == 1
    assert len(explained) == 2
    assert explained <= ran


async def test_a_mutation_that_does_not_compile_takes_no_row_of_another_one_with_it(
    server: Neo4jServer, graph: Neo4jStore
) -> None:
    """Their rows share a statement until the server is asked."""
    share(graph, SHARED[0], REFUSED)
    assert await graph.apply(APP, 0, [write(SHARED[0], {"id": "n", "x": "1"})]) == WriteResult(count=1)
    assert execute(server, "MATCH (n:N) RETURN n.log") == [["a1"]]


async def test_batches_of_two_apps_learn_together_that_a_mutation_does_not_compile(graph: Neo4jStore) -> None:
    """The row of the second one runs by the rule's own query, too; it is no dead letter."""
    refused = write(REFUSED, {"id": "n", "x": "1", "one": 1})
    form = graph._form(refused)
    assert form is not None
    share(graph, REFUSED)
    database = await graph._databases.graph(APP)
    assert await asyncio.gather(*(graph._refused_forms(database, [form]) for _ in range(3))) == [True] * 3
    assert await graph._refused_forms(database, [form])  # asked after others knew it


async def test_of_very_many_rows_the_first_are_applied(server: Neo4jServer, graph: Neo4jStore) -> None:
    rows = [{"x": number} for number in range(3_000)]
    middle = Checkpoint(offset="0")
    writes = [write("CREATE (:N {x: $x})", *rows, after=middle), write("CREATE (:M {x: $x})", *rows, before=middle)]
    assert await graph.apply(APP, 0, writes) == WriteResult(count=1)
    assert await graph.apply(APP, 0, writes[1:]) == WriteResult(count=1)
    assert execute(server, "MATCH (n) WHERE n.x IS NOT NULL RETURN count(n)") == [[6_000]]


@pytest.mark.timeout(180)
async def test_many_may_open_a_new_database_at_once(server: Neo4jServer) -> None:
    """None of them fails, which would cost it seconds of waiting, and what they make is there once."""
    keys = {(f"Key{number}", "id") for number in range(5)}
    for _ in range(2):
        execute(server, "MATCH (n) DETACH DELETE n")
        for kind, which in (("CONSTRAINT", ""), ("INDEX", "WHERE type = 'RANGE'")):
            for [name, _] in execute(server, f"SHOW {kind} YIELD name, type {which} RETURN name, type"):
                execute(server, f"DROP {kind} {name}")
        stores = [Neo4jStore(server.uri) for _ in range(4)]

        async def open_both(number: int, store: Neo4jStore) -> None:
            for partition in (2 * number, 2 * number + 1):
                await store.prepare(APP, keys)
                assert (await store.progress(APP, partition)).checkpoint == START

        await asyncio.gather(*(open_both(number, store) for number, store in enumerate(stores)))
        assert execute(server, "SHOW CONSTRAINTS YIELD name RETURN count(*)") == [[2]]
        made = execute(
            server,
            "SHOW INDEXES YIELD labelsOrTypes AS labels, properties AS names, owningConstraint AS owner, type "
            "WHERE type = 'RANGE' AND owner IS NULL RETURN labels[0], names[0]",
        )
        assert {(label, name) for label, name in made} == keys
        assert execute(server, "MATCH (p:__Progress) RETURN count(p)") == [[8]]
        for store in stores:
            await store.aclose()


async def test_a_graph_without_its_indexes_works(graph: Neo4jStore) -> None:
    keys = [("No`Such" * 40_000, "id")]  # no server takes a name as long as that
    await graph.prepare(APP, keys)
    assert await graph.apply(APP, 0, [write("CREATE (:N)")]) == WriteResult(count=1)


async def test_a_deadlock_with_another_program_is_tried_again(server: Neo4jServer, graph: Neo4jStore) -> None:
    execute(server, "CREATE (:A {n: 0}), (:B {n: 0})")
    ours = [
        write("MATCH (a:A) SET a.n = a.n + $x", {"x": 1}, after=Checkpoint(offset="0")),
        write(
            "UNWIND range(1, 300000) AS i WITH count(i) AS c MATCH (b:B) SET b.n = b.n + 1",
            before=Checkpoint(offset="0"),
        ),
    ]
    with neo4j.GraphDatabase.driver(server.uri) as driver, driver.session() as session:

        def other() -> None:
            with contextlib.suppress(neo4j.exceptions.TransientError), session.begin_transaction(timeout=20) as theirs:
                theirs.run("MATCH (b:B) SET b.n = b.n + 100").consume()
                theirs.run("UNWIND range(1, 300000) AS i WITH count(i) AS c MATCH (a:A) SET a.n = a.n + 100").consume()

        _, applied = await asyncio.gather(asyncio.to_thread(other), graph.apply(APP, 0, ours))
    assert applied == WriteResult(count=2)
    [[a]] = execute(server, "MATCH (a:A) RETURN a.n % 100")
    [[b]] = execute(server, "MATCH (b:B) RETURN b.n % 100")
    assert (a, b) == (1, 1)


async def test_waiting_for_the_lock_is_not_the_rules_fault(server: Neo4jServer, graph: Neo4jStore) -> None:
    timing = Neo4jTiming(admin_s=1.0)
    async with contextlib.aclosing(Neo4jStore(server.uri, write_timeout_ms=1_000, timing=timing)) as store:
        await store.progress(APP, 0)
        with neo4j.GraphDatabase.driver(server.uri) as driver, driver.session() as session:
            holder = session.begin_transaction(timeout=60)
            holder.run("MATCH (a:__App) SET a.lock = true").consume()
            for writes in ([write("CREATE (:N)")], [write("CREATE (:N)", after=START), write("CREATE (:N)")]):
                with pytest.raises(GraphUnavailable, match="lock"):
                    await store.apply(APP, 0, writes)
            holder.rollback()
        assert await store.apply(APP, 0, [write("CREATE (:N)")]) == WriteResult(count=1)
        assert execute(server, "MATCH (n:N) RETURN count(n)") == [[1]]


async def test_events_do_not_show_in_errors(server: Neo4jServer, graph: Neo4jStore) -> None:
    execute(server, "CREATE CONSTRAINT one IF NOT EXISTS FOR (n:One) REQUIRE n.id IS UNIQUE")
    for text, value in (
        ("CREATE (:One {id: $p}) CREATE (:One {id: $p})", "private"),
        ("CREATE (:N {x: $p})", {"a": "private"}),
        ("CREATE (:N {x: date($p)})", "private"),
        ("CREATE (:N {x: toInteger([$p])})", "private"),
        ("CREATE (n:N) SET n = $p", "private"),
        ("CREATE (:N {x: $p.y.z})", "private"),
    ):
        failure = (await graph.apply(APP, 0, [write(text, {"p": value})])).failure
        assert failure is not None
        assert "private" not in str(failure)
    execute(server, "DROP CONSTRAINT one")


@pytest.mark.slow
async def test_a_server_that_stands_still_counts_as_away(server: Neo4jServer) -> None:
    timing = Neo4jTiming(grace_s=1.0)
    async with contextlib.aclosing(Neo4jStore(server.uri, write_timeout_ms=3_000, timing=timing)) as graph:
        await graph.progress(APP, 0)
        await _stands_still(server, graph)


async def _stands_still(server: Neo4jServer, graph: Neo4jStore) -> None:
    server.pause()
    try:
        with pytest.raises(GraphUnavailable, match="has not answered"):
            await graph.apply(APP, 0, [write("CREATE (:N)")])
        with pytest.raises(QueryFailed, match="no answer"):
            await graph.read(APP, "RETURN 1", {}, timeout_s=0.2)
    finally:
        server.resume()

    # What was sent may take effect when the server goes on; the mark tells.
    async def mark() -> Checkpoint:
        here = (await graph.progress(APP, 0)).checkpoint
        await graph.apply(APP, 0, [Write(before=here, after=here)])
        return here

    here = await until_answered(mark, Transient)
    assert execute(server, "MATCH (n:N) RETURN count(n)") == [[1 if here == END else 0]]


@pytest.mark.parametrize("count", [1, 2])
async def test_what_the_server_refuses_at_the_end_is_the_rules_fault(
    server: Neo4jServer, graph: Neo4jStore, count: int
) -> None:
    """A node that still has relationships: the server looks at that when the transaction ends."""
    execute(server, "CREATE (:Linked)-[:R]->(:Other)")
    middle = Checkpoint(offset="0")
    writes = [write("CREATE (:N)", after=middle), write("MATCH (n:Linked) DELETE n", before=middle)][-count:]
    if count == 1:
        await graph.apply(APP, 0, [Write(before=START, after=middle)])
    applied = await apply_all(graph, writes)
    assert applied.count == count - 1
    assert applied.failure is not None
    assert "relationships" in str(applied.failure)
    assert execute(server, "MATCH (n:Linked) RETURN count(n)") == [[1]]
    assert (await graph.progress(APP, 0)).checkpoint == middle
