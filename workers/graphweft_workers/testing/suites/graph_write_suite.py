"""What every graph store promises of writes: order, once, and nothing of a fenced writer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from graphweft_contracts import Fenced, GraphUnavailable
from graphweft_workers.engine.plan.digest import Digest, read_digest
from graphweft_workers.ports.graph_store import START, Checkpoint, GraphStore, Progress, Write, WriteResult
from graphweft_workers.testing.suites.graph_kit import (
    APP,
    COUNT,
    GraphFixtures,
    GraphKit,
    apply_all,
    chain,
    checkpoint,
    query,
    value,
    write,
)
from graphweft_workers.testing.waiting import turns

# Each of these writes from no rows, so a guard in front of it, instead of around it, would not hold it back.
WRITES_FROM_NOTHING = [
    "MATCH (n:Nothing) WITH count(n) AS c MERGE (t:Stale {k: c})",
    "UNWIND [1, 2, 3] AS i WITH collect(i) AS xs MERGE (t:Stale {k: size(xs)})",
    "OPTIONAL MATCH (n:Nothing) MERGE (t:Stale {k: 1})",
    "OPTIONAL MATCH (n:Nothing) WITH n WHERE n IS NULL CREATE (t:Stale)",
    "CALL db.labels() YIELD label WITH count(label) AS c CREATE (:Stale {k: c})",
    "CREATE (t:Stale) RETURN t UNION CREATE (t:Stale) RETURN t",
    "FOREACH (i IN [1, 2] | CREATE (:Stale {k: i}))",
    "CREATE (t:Stale) RETURN t.k",
]


def calls_of_plan(name: str, before: Checkpoint, end: str) -> list[list[Write]]:
    """Return the calls of a worker that drops a row of a plan, and goes on with rows of every kind.

    Each row shows when it takes effect twice.
    """
    log = f"(n:N {{id: $id}}) SET n.log = coalesce(n.log, '') + '{name}'"
    keep, link = f"MERGE {log}", f"MATCH {log}"
    alone = f"MATCH (n:N {{id: $id}}) WITH n LIMIT $one SET n.log = n.log + '{name}'"
    delete = "MATCH (n:Gone {id: $id}) DELETE n"
    last: Checkpoint = before
    done = 0

    def written(text: str | None, count: int = 1, note: str | None = None) -> Write:
        nonlocal last, done
        done += count if text else 0
        start, last = last, Checkpoint(offset=before.offset, plan=name, done=done)
        row = {key: {"id": "n", "one": 1}[key] for key in (query(text).columns if text else ())}
        return write(text, *[row] * count, before=start, after=last, note=note)

    calls = [
        [written(None, note=f"{name} drops a row")],
        [written(None, note=f"{name} has its dead letter")],
        [written(keep, 2, f"{name} goes on"), written(link, 2)],
        [written(link, 2), written(keep, 2)],
        [written(alone)],
        [written(delete, 2)],
        [written(link, 1), written(alone)],
    ]
    calls.append([write(keep, {"id": "n"}, before=last, after=Checkpoint(offset=end), note="")])
    return calls


ROWS = [
    {"k": generator.randrange(4), "j": generator.randrange(4), "v": generator.randrange(9), "l": [1, 2][: i % 3]}
    for generator in [random.Random(5)]
    for i in range(40)
]

MUTATIONS = [
    "MERGE (n:A {k: $k}) ON CREATE SET n.c = 1, n.v = $v ON MATCH SET n.c = n.c + 1, n.v = n.v * 2 + $v",
    "MERGE (n:A {k: $k}) MERGE (m:A {k: $j}) MERGE (n)-[r:R]->(m) SET r.w = coalesce(r.w, 0) + $v",
    "MATCH (n:A {k: $k}) SET n.v = n.v + $v",
    "MERGE (n:A {k: $k}) WITH n MATCH (m:A) WHERE m.k < $j SET m.seen = coalesce(m.seen, 0) + $v",
    "MERGE (n:A {k: $k}) SET n.last = $v WITH n WHERE $v > 6 DETACH DELETE n",
    "MERGE (n:A {k: $k}) WITH n UNWIND $l AS x MERGE (q:C {k: x}) SET q.c = coalesce(q.c, 0) + $v",
    "OPTIONAL MATCH (n:A) WITH count(n) AS c MERGE (t:T {k: c}) SET t.n = coalesce(t.n, 0) + $v RETURN t.n",
    "FOREACH (x IN $l | MERGE (q:C {k: x}) SET q.c = coalesce(q.c, 0) + $v)",
    "MATCH (n:A) WITH n ORDER BY n.k LIMIT $j SET n.first = coalesce(n.first, 0) + 1",
    "WITH $k AS k MERGE (n:A {k: k}) SET n.c = $v // the last",
]


def batches(kit: GraphKit, text: str, rows: list[dict[str, Any]], before: Checkpoint) -> Iterator[Write]:
    """All rows in one write where the store's form of the query allows any rows, else one write a row."""
    asked = query(text)
    wanted = set(asked.columns)
    rows = [{name: item for name, item in row.items() if name in wanted} for row in rows]
    size = len(rows) if asked.batch_query(kit.store().dialect).mode == "ordered" else 1
    for number, start in enumerate(range(0, len(rows), size)):
        after = Checkpoint(offset=f"{before.offset}.{number}")
        yield Write(query=asked, rows=rows[start : start + size], before=before, after=after)
        before = after


class GraphWriteSuite(GraphFixtures):
    """Writes take effect in order, once, with the checkpoint, or not at all."""

    async def test_writes_take_effect_in_order_and_move_the_mark(self, graph: GraphStore) -> None:
        writes = chain("MERGE (a:A {id: $id}) SET a.x = 1", "MATCH (a:A {id: $id}) SET a.x = a.x + 10", id="k")
        assert await graph.apply(APP, 0, writes) == WriteResult(count=2)
        assert await value(graph, "MATCH (a:A) RETURN a.x") == 11
        assert await checkpoint(graph) == Checkpoint(offset="2")

    async def test_marks_are_those_of_all_partitions(self, graph: GraphStore) -> None:
        assert await graph.checkpoints(APP, timeout_s=120) == {0: START}
        await graph.progress(APP, 7)
        await graph.apply(APP, 0, chain(COUNT, COUNT))
        before, under_way = Checkpoint(offset="2"), Checkpoint(offset="2", plan="p", done=1)
        await graph.apply(APP, 0, [write(COUNT, before=before, after=under_way, note="note")])
        assert await graph.checkpoints(APP, timeout_s=120) == {0: under_way, 7: START}

    async def test_marks_move_with_every_write(self, graph: GraphStore) -> None:
        seen = [await graph.checkpoints(APP, timeout_s=120)]
        for each in chain(COUNT, COUNT, COUNT):
            await graph.apply(APP, 0, [each])
            assert await graph.checkpoints(APP, timeout_s=120) not in seen
            seen.append(await graph.checkpoints(APP, timeout_s=120))

    async def test_a_mark_that_was_overwritten_is_none(self, kit: GraphKit, graph: GraphStore) -> None:
        kit.run("MATCH (p:__Progress) SET p.done = 'x'")
        with pytest.raises(GraphUnavailable):
            await graph.checkpoints(APP, timeout_s=120)

    async def test_no_writes_are_no_work(self, graph: GraphStore) -> None:
        assert await graph.apply(APP, 0, []) == WriteResult(count=0)

    @pytest.mark.parametrize("count", [1, 2])
    async def test_applying_again_changes_nothing(self, graph: GraphStore, count: int) -> None:
        writes = chain(*[COUNT] * count)
        await graph.apply(APP, 0, writes)
        with contextlib.suppress(Fenced):  # or the count, where the graph stands at the end of these writes
            assert await graph.apply(APP, 0, writes) == WriteResult(count=count)
        assert await value(graph, "MATCH (c:Counter) RETURN c.n") == count
        assert await checkpoint(graph) == Checkpoint(offset=str(count))

    @pytest.mark.parametrize("statement", WRITES_FROM_NOTHING)
    @pytest.mark.parametrize("count", [1, 2])
    async def test_a_fenced_writer_changes_nothing(self, graph: GraphStore, statement: str, count: int) -> None:
        await graph.apply(APP, 0, chain(COUNT, COUNT, COUNT))
        with pytest.raises(Fenced):
            await graph.apply(APP, 0, chain(*[statement] * count))
        assert await value(graph, "MATCH (s:Stale) RETURN count(s)") == 0
        assert await checkpoint(graph) == Checkpoint(offset="3")

    @pytest.mark.parametrize(
        "elsewhere",
        [
            Checkpoint(offset="8"),
            Checkpoint(offset="7", plan="p", done=3),
            Checkpoint(offset="7", plan="q", done=2),
            START,
        ],
    )
    async def test_each_part_of_the_mark_counts(self, graph: GraphStore, elsewhere: Checkpoint) -> None:
        here = Checkpoint(offset="7", plan="p", done=2)
        await graph.apply(APP, 0, [write(None, before=START, after=here)])
        with pytest.raises(Fenced):
            await graph.apply(APP, 0, [write(COUNT, before=elsewhere, after=Checkpoint(offset="9"))])
        assert await value(graph, "MATCH (c:Counter) RETURN count(c)") == 0
        assert await graph.apply(APP, 0, [write(COUNT, before=here, after=Checkpoint(offset="9"))]) == WriteResult(
            count=1
        )

    async def test_a_write_that_moves_nothing_is_refused_to_a_fenced_writer(self, graph: GraphStore) -> None:
        here = Checkpoint(offset="7", plan="p", done=2)
        await graph.apply(APP, 0, [write(None, before=START, after=here, note="kept")])
        assert await graph.apply(APP, 0, [Write(before=here, after=here)]) == WriteResult(count=1)
        with pytest.raises(Fenced):
            await graph.apply(APP, 0, [Write(before=START, after=START)])
        assert await graph.progress(APP, 0) == Progress(checkpoint=here, note="kept")

    async def test_the_writes_of_a_former_owner_change_nothing(self, kit: GraphKit, graph: GraphStore) -> None:
        """It stands still in each of its calls in turn; all of them come between and after those of the next owner."""

        async def seen() -> tuple[Any, Progress]:
            return await value(graph, "MATCH (n:N) RETURN collect(n.log)"), await graph.progress(APP, 0)

        late = calls_of_plan("p", START, "5")
        for number in range(len(late)):
            kit.run("MATCH (n:N) DELETE n")
            here = await checkpoint(graph)
            await graph.apply(APP, 0, [write(None, before=here, after=START, note="")])
            for each in late[:number]:
                await apply_all(graph, each)
            for after in calls_of_plan("q", await checkpoint(graph), "5"):
                await apply_all(graph, after)
                there = await seen()
                for each in late:
                    with contextlib.suppress(
                        Fenced
                    ):  # or it counts them, where the graph stands at the end of its writes
                        await graph.apply(APP, 0, each)
                    assert await seen() == there

    @pytest.mark.parametrize("statement", WRITES_FROM_NOTHING)
    @pytest.mark.parametrize("count", [1, 2])
    async def test_the_guard_does_not_change_what_a_query_does(
        self, kit: GraphKit, graph: GraphStore, statement: str, count: int
    ) -> None:
        await graph.apply(APP, 0, chain(*[statement] * count))
        guarded = await value(graph, "MATCH (s:Stale) RETURN collect(s.k)")
        kit.run("MATCH (s:Stale) DETACH DELETE s")
        for _ in range(count):
            kit.run(statement)
        plain = await value(graph, "MATCH (s:Stale) RETURN collect(s.k)")
        if "db.labels" not in statement:  # it counts labels that exist by then
            assert sorted(guarded) == sorted(plain)

    async def test_partitions_have_marks_of_their_own(self, graph: GraphStore) -> None:
        await graph.progress(APP, 1)
        for partition in (0, 1):
            await graph.apply(APP, partition, chain(COUNT))
        assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2

    @pytest.mark.parametrize("count", [1, 3])
    async def test_writers_that_race_write_once(self, kit: GraphKit, graph: GraphStore, count: int) -> None:
        """Four writers of one partition, each of which believes what it has read last."""
        last = 40

        async def race(number: int) -> None:
            async with contextlib.aclosing(kit.store()) as store:
                here = await checkpoint(store)
                while int(here.offset or 0) < last:
                    writes = chain(*[COUNT] * count, start=here)
                    try:
                        here = writes[(await store.apply(APP, 0, writes)).count - 1].after
                    except Fenced:
                        here = await checkpoint(store)
                    await turns(number)

        await asyncio.gather(*map(race, range(4)))
        assert str(await value(graph, "MATCH (c:Counter) RETURN c.n")) == (await checkpoint(graph)).offset

    async def test_partitions_that_race_merge_one_node(self, kit: GraphKit, graph: GraphStore) -> None:
        async def work(partition: int) -> None:
            async with contextlib.aclosing(kit.store()) as store:
                await store.progress(APP, partition)
                for start in range(10):
                    here = Checkpoint(offset=str(start)) if start else START
                    after = Checkpoint(offset=str(start + 1))
                    rows = [{"id": number} for number in range(5)]
                    for row in rows:
                        row["id"] += start
                    done = write(
                        "MERGE (s:Shared {id: $id}) SET s.n = coalesce(s.n, 0) + 1", rows[0], before=here, after=after
                    )
                    assert await store.apply(APP, partition, [done]) == WriteResult(count=1)

        await asyncio.gather(*map(work, range(4)))
        assert await value(graph, "MATCH (s:Shared) RETURN count(s)") == 10
        assert await value(graph, "MATCH (s:Shared) RETURN sum(s.n)") == 40

    async def test_what_was_deleted_is_not_found_again(self, graph: GraphStore) -> None:
        await graph.prepare(APP, [("Plain", "k"), ("Hot", "k")])
        both = "MATCH (a:Plain {k: $k}) SET a:Hot DETACH DELETE a"
        texts = [
            *("MERGE (a:Plain {k: $k})", "MATCH (a:Plain {k: $k}) SET a:Hot", "MATCH (a:Hot {k: $k}) DETACH DELETE a"),
            *("MERGE (a:Hot {k: $k}) SET a.n = coalesce(a.n, 0) + 1", "MERGE (a:Plain {k: $k})", both),
            *("MATCH (a:Hot {k: $k}) SET a.n = coalesce(a.n, 0) + 1", "MERGE (a:Plain {k: $k})"),
        ]
        writes = chain(*texts, k=1)
        await apply_all(graph, writes[:1])
        await apply_all(graph, writes[1:])
        assert await value(graph, "MATCH (a:Hot) RETURN count(a)") == 1
        assert await value(graph, "MATCH (a:Hot) RETURN a.n") == 2
        assert await value(graph, "MATCH (a:Plain) RETURN count(a)") == 1

    async def test_the_first_of_a_kind_is_merged_once(self, kit: GraphKit, graph: GraphStore) -> None:
        """Partitions of one app may be at several processes, and all of them meet new labels and types at once."""
        kinds = kit.new_kinds

        async def work(partition: int) -> None:
            async with contextlib.aclosing(kit.store()) as store:
                await store.progress(APP, partition)
                for kind in range(kinds):
                    here = Checkpoint(offset=str(kind)) if kind else START
                    text = (
                        f"MERGE (a:From{kind} {{id: $id}}) MERGE (b:To{kind} {{id: $id}}) "
                        f"MERGE (a)-[r:WENT{kind}]->(b) SET r.n = coalesce(r.n, 0) + 1"
                    )
                    done = write(text, {"id": 1}, before=here, after=Checkpoint(offset=str(kind + 1)))
                    assert await store.apply(APP, partition, [done]) == WriteResult(count=1)

        await asyncio.gather(*map(work, range(4)))
        assert await value(graph, "MATCH (n) WHERE n.id = 1 RETURN count(n)") == 2 * kinds
        assert await value(graph, "MATCH ()-[r]->() RETURN count(r)") == kinds
        assert await value(graph, "MATCH ()-[r]->() RETURN sum(r.n)") == 4 * kinds

    async def test_a_call_that_was_cancelled_has_written_all_or_nothing(self, graph: GraphStore) -> None:
        slow = "UNWIND range(1, 2000) AS i CREATE (:Flood {i: i})"
        for number in range(12):
            here = await checkpoint(graph)
            texts = (COUNT, slow) if number % 2 else (slow + " WITH count(*) AS x " + COUNT,)
            # A late call must not move the checkpoint to where a later one begins: it stands for the same data.
            writes = chain(*texts, start=here, plan=str(number))
            with contextlib.suppress(TimeoutError, Fenced):
                async with asyncio.timeout(0.002 * number):
                    await graph.apply(APP, 0, writes)
        # What was sent last may still be at work; a write of our own comes behind it.
        while True:
            here = await checkpoint(graph)
            with contextlib.suppress(Fenced):
                await graph.apply(APP, 0, [write(None, before=here, after=here)])
                break
        steps = int((await checkpoint(graph)).offset or 0)
        floods = await value(graph, "MATCH (f:Flood) RETURN count(f)")
        counted = await value(graph, "MATCH (c:Counter) RETURN sum(c.n)") or 0
        assert floods % 2000 == 0
        assert counted >= floods // 2000
        assert counted <= steps <= counted + floods // 2000

    @pytest.mark.parametrize("text", MUTATIONS)
    async def test_rows_that_share_a_query_equal_one_query_each(
        self, kit: GraphKit, graph: GraphStore, text: str
    ) -> None:
        setup = [MUTATIONS[0], MUTATIONS[1]]
        together: Digest | None = None
        for shared in (True, False):
            here = await checkpoint(graph)
            for part in [*setup, text]:
                if shared:
                    writes = list(batches(kit, part, ROWS, here))
                else:
                    wanted = set(query(part).columns)
                    rows = [{name: row[name] for name in wanted} for row in ROWS]
                    checkpoints = [here, *(Checkpoint(offset=f"{here.offset}-{number}") for number in range(len(rows)))]
                    pairs = zip(rows, itertools.pairwise(checkpoints), strict=True)
                    writes = [write(part, row, before=before, after=after) for row, (before, after) in pairs]
                await apply_all(graph, writes)
                here = writes[-1].after
            found = await read_digest(graph, APP)
            if shared:
                together = found
                kit.run("MATCH (n) WHERE n:A OR n:C OR n:T DETACH DELETE n")
        assert found == together
        assert found.nodes > 0

    async def test_a_refused_write_stops_there_and_leaves_no_trace(self, graph: GraphStore) -> None:
        bad = "MERGE (b:Bad {id: 1}) SET b.x = 1 / 0"
        writes = chain(COUNT, bad, COUNT)
        applied = await graph.apply(APP, 0, writes)
        assert applied.count == 1
        assert applied.failure is not None
        assert applied.failure.code == "query_error"
        assert "zero" in str(applied.failure).lower()
        assert await value(graph, "MATCH (b:Bad) RETURN count(b)") == 0
        assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 1
        assert await checkpoint(graph) == writes[0].after
        over = [write(None, before=writes[1].before, after=writes[1].after), writes[2]]
        assert await graph.apply(APP, 0, over) == WriteResult(count=2)
        assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 2

    async def test_one_bad_row_keeps_back_all_of_its_write(self, kit: GraphKit, graph: GraphStore) -> None:
        text = "MERGE (n:N {id: $id}) SET n.x = 10 / $by"
        rows = [{"id": number, "by": number - 3} for number in range(6)]
        size = len(rows) if query(text).batch_query(graph.dialect).mode == "ordered" else 1
        first, here = chain(COUNT)[0], Checkpoint(offset="1")
        writes = [first]
        for start in range(0, len(rows), size):
            writes.append(write(text, *rows[start : start + size], before=here, after=Checkpoint(offset=f"2-{start}")))
            here = writes[-1].after
        applied = await graph.apply(APP, 0, writes)
        assert applied.failure is not None
        assert applied.count == (1 if size > 1 else 4)
        assert await value(graph, "MATCH (n:N) RETURN count(n)") == (0 if size > 1 else 3)
        assert await value(graph, "MATCH (c:Counter) RETURN c.n") == 1
        assert await checkpoint(graph) == writes[applied.count - 1].after

    async def test_the_note_stays_until_there_is_another(self, graph: GraphStore) -> None:
        one, two, three, four = (Checkpoint(offset=str(number)) for number in range(1, 5))
        await graph.apply(APP, 0, [write(COUNT, before=START, after=one, note="first")])
        assert await graph.progress(APP, 0) == Progress(checkpoint=one, note="first")
        await graph.apply(APP, 0, [write(COUNT, before=one, after=two), write(None, before=two, after=three)])
        assert await graph.progress(APP, 0) == Progress(checkpoint=three, note="first")
        await graph.apply(APP, 0, [write(None, before=three, after=four, note="")])
        assert await graph.progress(APP, 0) == Progress(checkpoint=four)
        long = 'a "quoted" \\ note\n' * 5_000
        await graph.apply(APP, 0, [write(None, before=four, after=one, note=long), write(COUNT, before=one, after=two)])
        assert await graph.progress(APP, 0) == Progress(checkpoint=two, note=long)

    @pytest.mark.parametrize("count", [1, 2])
    @pytest.mark.parametrize(
        "taking", ["MATCH (n) WHERE n.partition = 0 DETACH DELETE n", "MATCH (n) WHERE n.partition = 0 SET n.pos = 'x'"]
    )
    async def test_a_rule_that_removes_the_checkpoint_runs_once(
        self, graph: GraphStore, taking: str, count: int
    ) -> None:
        await graph.apply(APP, 0, [write(None, before=START, after=Checkpoint(offset="0"), note="kept")])
        texts = [f"{taking} WITH count(*) AS x CREATE (:Taken)"] * count
        writes = chain(*texts, start=Checkpoint(offset="0"))
        while writes:
            try:
                writes = writes[(await graph.apply(APP, 0, writes)).count :]
            except (Fenced, GraphUnavailable):
                break
        assert await value(graph, "MATCH (t:Taken) RETURN count(t)") <= count

    @pytest.mark.parametrize(
        ("statement", "params", "expected"),
        [
            ("MATCH (n", {}, "Invalid input"),
            ("MERGE (n:N {id: $id})", {"id": None}, "null"),
            ("MERGE (n:N) SET n.m = $m", {"m": {"a": "private"}}, ""),
            ("MERGE (n:N {id: $id})", {"id": 2**63}, "64 bits"),
            ("MERGE (n:N {id: $id})", {"id": [-(2**63) - 1]}, "64 bits"),
            ("MERGE (n:N {id: $id})", {"id": "\ud800"}, "parameter"),
            ("MERGE (n:N {id: $id}) SET n.x = date('private' + $id)", {"id": "private"}, ""),
        ],
    )
    @pytest.mark.parametrize("before", [0, 1])
    async def test_what_cannot_be_applied_is_refused_not_changed(
        self, graph: GraphStore, statement: str, params: dict[str, Any], expected: str, before: int
    ) -> None:
        writes = chain(*[COUNT] * before, statement, COUNT, **params)
        applied = await graph.apply(APP, 0, writes)
        assert applied.count == before
        assert applied.failure is not None
        assert expected in str(applied.failure)
        assert "private" not in str(applied.failure).replace("date('private'", "")
        assert await value(graph, "MATCH (n:N) RETURN count(n)") == 0
        assert (await checkpoint(graph)).offset == ("1" if before else "")

    @pytest.mark.parametrize("before", [0, 1])
    async def test_a_slow_write_is_aborted_and_rolled_back(self, kit: GraphKit, graph: GraphStore, before: int) -> None:
        # It writes, and then takes its time without taking memory: a server may have a limit for that, too.
        slow = (
            "CREATE (:Flood) WITH 1 AS one UNWIND range(1, 20000) AS a UNWIND range(1, 100000) AS b "
            "WITH count(b) AS pairs CREATE (:Flood {pairs: pairs})"
        )
        async with contextlib.aclosing(kit.store(write_timeout_ms=1_500)) as store:
            applied = await store.apply(APP, 0, chain(*[COUNT] * before, slow, COUNT))
        assert applied.count == before
        assert applied.failure is not None
        assert applied.failure.code == "timeout"
        assert await value(graph, "MATCH (f:Flood) RETURN count(f)") == 0
        assert (await checkpoint(graph)).offset == ("1" if before else "")
