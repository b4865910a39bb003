"""The statements of the store, and the rows of writes in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from neo4j import Query

from graphweft_contracts import QueryFailed, channels
from graphweft_rules.cypher.batch_query import ROW, BatchQuery
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_workers.drivers.neo4j.dialect import quoted
from graphweft_workers.drivers.neo4j.namespaces import LIVE, Namespace
from graphweft_workers.ports.graph_store import PARTIAL, Checkpoint, Progress, Write

_ROWS: Final = 5_000
"""Rows of one transaction, unless one write has more: it has the time limit of a single query."""
_DATABASE: Final = re.compile(r"[a-z][a-z0-9.-]{2,62}")
# Without the second one two concurrent MERGEs create two checkpoints.
_ONLY: Final = {"graphweft_app": ("__App", "only"), "graphweft_progress": ("__Progress", "partition")}
LIST_CONSTRAINTS: Final = "SHOW CONSTRAINTS YIELD name RETURN name"
CLAIM: Final = (
    "OPTIONAL MATCH (p:__Progress) WITH head(collect(p.app)) AS marked MERGE (a:__App {only: true}) "
    "ON CREATE SET a.app_id = coalesce(marked, $__gw_app) SET a.lock = true WITH a RETURN a.app_id"
)
"""A graph whose node ``__App`` is gone stays that of the app that its checkpoints name."""
_IN_BATCHES: Final = "CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 10000 ROWS"
LIST_OF_LABELS: Final = (
    "SHOW INDEXES YIELD name, labelsOrTypes, owningConstraint "
    "WHERE any(label IN labelsOrTypes WHERE label STARTS WITH $prefix) RETURN name, owningConstraint"
)
"""The indexes on labels that begin with a prefix, each with the constraint that made it."""
MAKE_CHECKPOINT: Final = (
    "MERGE (p:__Progress {partition: $__gw_partition}) ON CREATE SET p.pos = '', p.plan = '', p.done = 0, p.note = '' "
    "FOREACH (one IN CASE WHEN p.app IS NULL THEN [0] ELSE [] END | SET p.app = $__gw_app) "
    "RETURN p.pos, p.plan, p.done, p.note"
)
READ_CHECKPOINTS: Final = "MATCH (p:__Progress) RETURN p.partition, p.pos, p.plan, p.done"
READ_OWNED_CHECKPOINTS: Final = (
    "OPTIONAL MATCH (a:__App) OPTIONAL MATCH (p:__Progress) WITH a, p WHERE a IS NOT NULL OR p IS NOT NULL "
    "RETURN p.partition, p.pos, p.plan, p.done, a.app_id"
)
"""With the app whose graph it is; one row without a partition if there is no checkpoint, none without a graph."""
OWNER: Final = (
    "OPTIONAL MATCH (a:__App) OPTIONAL MATCH (p:__Progress) WITH a, count(p) AS marks WHERE a IS NOT NULL OR marks > 0 "
    "RETURN a.app_id"
)
"""One row without an app for a graph whose node ``__App`` is gone, none without a graph."""
VALUES: Final = "__gw_in"
"""The only parameter of statements that run often. The server plans a statement anew, for up to half a second, when a
parameter is null for once, or when a text or a list has ten times the size; it does not look into maps for that."""
LOCK: Final = "MATCH (__gw_a:__App {only: true}) WHERE __gw_a.app_id = $__gw_in.app SET __gw_a.lock = true WITH __gw_a "
READ_CHECKPOINT: Final = (
    f"{LOCK} MATCH (p:__Progress {{partition: $__gw_in.partition}}) RETURN p.pos, p.plan, p.done, p.note"
)
_GUARD: Final = (
    f"{LOCK} MATCH (__gw:__Progress {{partition: $__gw_in.partition}}) "
    "WHERE __gw.pos = $__gw_in.pos AND __gw.plan = $__gw_in.plan AND __gw.done = $__gw_in.done "
    "WITH coalesce($__gw_in.note, __gw.note) AS __gw_kept "
)
# MERGE, because a rule may have deleted the checkpoint.
MOVE: Final = "MERGE (__gw_p:__Progress {partition: $__gw_in.partition}) SET __gw_p += $__gw_in.next, __gw_p.note = "
LIST_INDEXES: Final = (
    "SHOW INDEXES YIELD labelsOrTypes, properties, entityType, type "
    "WHERE entityType = 'NODE' AND type IN ['RANGE', 'FULLTEXT', 'VECTOR'] RETURN labelsOrTypes, properties, type"
)
LIST_SCHEMA_INDEXES: Final = (
    "SHOW INDEXES YIELD type, entityType, labelsOrTypes, properties, owningConstraint "
    "WHERE type <> 'LOOKUP' AND owningConstraint IS NULL RETURN type, entityType, labelsOrTypes, properties"
)
LIST_SCHEMA_CONSTRAINTS: Final = (
    "SHOW CONSTRAINTS YIELD type, labelsOrTypes, properties RETURN type, labelsOrTypes, properties"
)
type Work = Sequence[tuple[Write, BatchQuery | None]]
"""Writes with their batch queries; None if each row has its own query."""


@dataclass(frozen=True, slots=True)
class Part:
    """Writes that run together by one statement. Without ``batch_queries`` it is one write, or none."""

    work: Work
    batch_queries: tuple[BatchQuery, ...] = ()
    is_new: bool = False
    """Whether the statement is that of one batch query, which seldom ran so far."""

    @property
    def alone(self) -> bool:
        """Whether each row has its own query."""
        return not self.batch_queries and any(write.query for write, _ in self.work)


def shared(batch_queries: Sequence[BatchQuery]) -> str:
    """Return one statement for the rows of several batch queries in several runs.

    A run has a list of rows for each batch query, in their order. The outer subquery makes the server process one run
    after the other, as the inner ones do with rows.
    """
    each = " ".join(
        f"CALL (__gw_run) {{ UNWIND __gw_run[{number}] AS {ROW} {batch_query.statement} FINISH }}"
        for number, batch_query in enumerate(batch_queries)
    )
    return f"UNWIND $__gw_in.runs AS __gw_run CALL (__gw_run) {{ {each} }} RETURN count(*) AS __gw_count"


def in_one_run(batch_queries: Sequence[BatchQuery]) -> str:
    """Return the subqueries for the rows of several batch queries in a single run: one level fewer for each row."""
    return " ".join(
        f"CALL () {{ UNWIND $__gw_in.runs[0][{number}] AS {ROW} {batch_query.statement} FINISH }}"
        for number, batch_query in enumerate(batch_queries)
    )


def by_itself(batch_queries: Sequence[BatchQuery]) -> str:
    """Return the statement for a single run of batch queries that moves no checkpoint."""
    return f"{in_one_run(batch_queries)} FINISH"


def runs(part: Part) -> list[list[list[list[Any]]]]:
    """Return the rows of a part for ``shared``; a run continues while the writes follow its order."""
    numbers = {batch_query.statement: number for number, batch_query in enumerate(part.batch_queries)}
    runs: list[list[list[list[Any]]]] = []
    last = len(numbers)
    for write, batch_query in part.work:
        if batch_query is not None:
            number = numbers[batch_query.statement]
            if number < last:
                runs.append([[] for _ in numbers])
            runs[-1][number] += write.numbered_rows(batch_query.columns)
            last = number
    return runs


def fused(batch_queries: Sequence[BatchQuery], *, one_run: bool = False, space: Namespace = LIVE) -> str:
    """Return the statement that runs writes and moves the checkpoint, if the checkpoint has the expected value.

    A subquery counts the runs, so the statement returns one row however many rows the rules return, and none if the
    guard did not match. The statement for one run takes an eighth less time.
    """
    if one_run:
        work = f"{in_one_run(batch_queries)} "
    else:
        work = f"CALL () {{ {shared(batch_queries)} }} " if batch_queries else ""
    return f"{space.statement(_GUARD)}{work}{space.statement(MOVE)}__gw_kept RETURN 1"


def constraints(space: Namespace) -> dict[str, str]:
    """Return the statement of each constraint of a graph, by its name."""
    tail = f"_{hashlib.sha256(space.name.encode()).hexdigest()[:12]}" if space.name else ""
    return {
        f"{name}{tail}": f"CREATE CONSTRAINT {name}{tail} IF NOT EXISTS FOR (n:{quoted(space.label(label))}) "
        f"REQUIRE n.{key} IS UNIQUE"
        for name, (label, key) in _ONLY.items()
    }


def deletion(space: Namespace) -> list[str]:
    """Return the statements that delete the nodes of a graph; of the live one, all nodes of the database.

    The owner of the graph goes last, so what is cut off can be given again. A second graph that is half deleted has the
    checkpoint of one that is loaded, which nobody continues.
    """
    if not space.name:
        return [f"MATCH (n) WHERE NOT n:__App {_IN_BATCHES}", "MATCH (n) DETACH DELETE n"]
    mark, app, progress = (quoted(each) for each in (space.mark, space.label("__App"), space.label("__Progress")))
    empty = properties(PARTIAL)
    begun = ", ".join(f"p.{name} = {value!r}" for name, value in empty.items())
    return [
        f"MATCH (p:{progress}) SET {begun}",
        f"MATCH (n:{mark}) WHERE NOT n:{app} AND NOT n:{progress} {_IN_BATCHES}",
        f"MATCH (n:{mark}) DETACH DELETE n",
    ]


def apart(work: Work) -> list[Part]:
    """Return a part for each write."""
    return [Part([item], (batch_query,) if (batch_query := item[1]) is not None else ()) for item in work]


def first(writes: Sequence[Write]) -> Sequence[Write]:
    """Return the first writes that fit into one transaction, at least one."""
    total = 0
    for count, write in enumerate(writes):
        total += len(write.rows)
        deletes = write.query is not None and write.query.deletes
        if count and (deletes or total > _ROWS):
            return writes[:count]
        if deletes:
            return writes[:1]
    return writes


def last_note(writes: Sequence[Write]) -> str | None:
    """Return the note after the writes; None if they keep it."""
    return next((write.note for write in reversed(writes) if write.note is not None), None)


def timed(text: str, timeout_s: float) -> Query:
    """Return a statement with the server's time limit."""
    make: Any = Query  # its type requires literals, and a rule's text is not one
    query: Query = make(text, timeout=timeout_s)
    return query


def in_text(text: str, line: int, column: int) -> tuple[int, int]:
    """Return the server's place with the column in characters: the server counts UTF-16 units."""
    before = text.split("\n")[line - 1].encode("utf-16-le")[: 2 * (column - 1)].decode("utf-16-le", errors="ignore")
    return line, len(before) + 1


def properties(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a checkpoint as the properties of its node."""
    return {"pos": checkpoint.offset, "plan": checkpoint.plan, "done": checkpoint.done}


def progress_of(rows: Sequence[Sequence[Any]]) -> Progress | None:
    """Return the progress in the rows; None if it is missing or overwritten by a rule."""
    match rows:
        case [[str(offset), str(plan), int(done), str(note)]]:
            return Progress(checkpoint=Checkpoint(offset=offset, plan=plan, done=done), note=note)
        case _:
            return None


def database_name(app_id: str, template: str) -> str:
    """Return the database of an app. Neo4j allows lower case letters, digits, dots and dashes only.

    A changed name gets a hash, so that two apps do not share a database.
    """
    plain = channels.graph_name(app_id, template)
    name = re.sub(r"[^a-z0-9.-]", "-", plain.lower())
    if not re.fullmatch(r"[a-z0-9-]+", app_id) or len(name) > 63:
        name = f"{name[:54]}-{hashlib.sha256(plain.encode()).hexdigest()[:8]}"
    if not _DATABASE.fullmatch(name) or name.startswith("system"):
        raise QueryFailed(
            f"{name!r} is not a valid name of a Neo4j database: it must begin with a letter, but not with 'system', "
            "and have at least 3 characters; change GRAPHWEFT_GRAPH_TEMPLATE"
        )
    return name


def search_index(index: SearchIndex) -> str:
    """Return the statement that makes a fulltext or vector index."""
    name, label = quoted(index.name), quoted(index.label)
    if index.kind == "vector":
        return (
            f"CREATE VECTOR INDEX {name} IF NOT EXISTS FOR (n:{label}) ON (n.{quoted(index.properties[0])}) OPTIONS "
            f"{{indexConfig: {{`vector.dimensions`: {index.dimensions}, `vector.similarity_function`: 'cosine'}}}}"
        )
    analyzer = " OPTIONS {indexConfig: {`fulltext.analyzer`: 'whitespace'}}" if index.terms else ""
    properties = ", ".join(f"n.{quoted(each)}" for each in index.properties)
    return f"CREATE FULLTEXT INDEX {name} IF NOT EXISTS FOR (n:{label}) ON EACH [{properties}]{analyzer}"
