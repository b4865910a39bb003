"""Random rules and events as hypothesis strategies: each of our ways to write, put together at will.

What a query leaves must be told by the graph's content, or two servers that did the same would not agree. So where a
clause may find several nodes, what is written does not depend on their order: no LIMIT, no ``collect``, no value of
one of several entities in another one. Also left out is what a server does wrong by itself, one query at a time: see
the traps of each in the integration tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

__all__ = ("PARAMS", "TEXTS", "TYPES", "Example", "examples", "some_texts")

TYPES = ("a.one", "a.two", "a.three")
PARAMS = {"k": "$event.k", "j": "$event.j", "n": "$event.n", "id": "$event.name", "xs": "$event.xs", "m": "$event.m",
          "s": "$event.s"}  # fmt: skip
"""Parameter -> reference; ``k`` and ``j`` are keys, ``n`` a number or null, ``m`` a map, ``s`` a text or null."""

# fmt: off
TEXTS = (
    "MERGE (c:A {k: $k}) ON CREATE SET c.n = 1 ON MATCH SET c.n = c.n + 1",
    "MERGE (l:A {k: $k}) SET l.list = coalesce(l.list, []) + [$id]",
    "MERGE (a:A {k: $k}) MERGE (b:B {k: $j}) MERGE (a)-[r:R]->(b) ON CREATE SET r.n = 1 ON MATCH SET r.n = r.n + 1",
    "MERGE (a:P {k: $k})-[r:S]->(b:Q {k: $j}) SET r.last = $id",
    "MATCH (a:A {k: $k}) DETACH DELETE a",
    "MATCH (a:A {k: $k})-[r:R]->(b) DELETE r",
    "MATCH (a:A {k: $k}) DETACH DELETE a WITH 1 AS one CREATE (:Ghost {v: 10 / $n})",
    "MATCH (a:A) WITH count(*) AS n MERGE (t:Total {k: 'all'}) SET t.n = n, t.runs = coalesce(t.runs, 0) + 1",
    "MATCH (x:Nothing) WITH count(x) AS n CREATE (:Zero {id: $id, n: n})",
    "MATCH (a:A {k: $k}) OPTIONAL MATCH (b:B) WITH a, count(b) AS n SET a.others = n",
    "OPTIONAL MATCH (a:A {k: $k}) WITH count(a) AS had MERGE (s:Seen {k: $k}) SET s.had = had",
    "OPTIONAL MATCH (a:A {k: $k}) WITH a IS NOT NULL AS had MERGE (s:Seen {k: $k})"
    " SET s.had = had, s.n = coalesce(s.n, 0) + CASE WHEN had THEN 1 ELSE 0 END",
    "MERGE (a:A {k: $k})",
    "UNWIND $xs AS x MERGE (u:A {k: x}) ON CREATE SET u.n = 1 ON MATCH SET u.n = u.n + 1",
    "UNWIND $xs AS x WITH x, 10 / $n AS q MERGE (m:Part {k: x}) SET m.q = q, m.n = coalesce(m.n, 0) + 1",
    "FOREACH (x IN $xs | MERGE (f:A {k: x}) SET f.last = $id)",
    "FOREACH (x IN CASE WHEN $n > 1 THEN [1] ELSE [] END | MERGE (f:B {k: $k}) SET f.big = $n)",
    "MERGE (d:Share {k: $k}) SET d.v = 100 / $n, d.n = coalesce(d.n, 0) + 1",
    "MATCH (c:A {k: $k}) SET c.seen = coalesce(c.seen, 0) + 1 RETURN c.n AS n ORDER BY n LIMIT 1",
    "CREATE (r:Row {id: $id}) RETURN r.id AS id SKIP 3",
    "MERGE (a:UA {k: $k}) SET a.n = coalesce(a.n, 0) + 1 RETURN 1 AS x"
    " UNION MERGE (b:UB {k: $k}) SET b.n = coalesce(b.n, 0) + 1 RETURN 2 AS x",
    "WITH $k AS k MERGE (w:A {k: k}) SET w.n = coalesce(w.n, 0) + 1",
    "MATCH (a:A {k: $k}) SET a:Hot",
    "MATCH (a:Hot {k: $k}) REMOVE a:Hot SET a.cooled = coalesce(a.cooled, 0) + 1",
    "MERGE (e:E {k: $k}) SET e += $m",
    "MERGE (e:E {k: $k}) SET e.text = $s, e.name = $id",
    "MATCH (e:E {k: $k}) REMOVE e.text",
    "MATCH (e:E {k: $k}) WHERE e.text IS NULL SET e.gone = $id",
    "MATCH (a:A {k: $k}) MATCH (b:B {k: $j}) WITH a, b WHERE a.n > 1 MERGE (a)-[:T]->(b)",
    "MATCH (a:A {k: $k})-[r:R]->(b:B {k: $j}) SET b.met = coalesce(b.met, 0) + 1",
    "CREATE (:Log {id: randomUUID(), at: timestamp(), event: $id}) // a comment at the end",
    "CREATE (:Wrong {id: $id, v: toUpper($n)})",
    "MATCH (d:Share {k: $k}) SET d.after = coalesce(d.after, 0) + d.n",
    # One label under several keys, and keys that change.
    "MERGE (a:A {id: $j}) SET a.n = coalesce(a.n, 0) + 1",
    "MERGE (a:A {id: $j}) ON CREATE SET a.k = $k",
    "MATCH (a:A {k: $k}) SET a.id = $j",
    "MATCH (a:A {id: $j}) SET a.n = 0, a.met = $id",
    "MATCH (a:A {k: $k}) SET a += $m",
    # Labels that come and go.
    "MERGE (b:B {k: $k}) SET b:A",
    "MATCH (a:A {k: $k}) REMOVE a:A",
    # Relationships that are made again.
    "MATCH (a:A {k: $k}) MATCH (b:B {k: $j}) MERGE (a)-[r:R]->(b) SET r.n = coalesce(r.n, 0) + 1",
    "MATCH (a:A {k: $k})-[r:R]->(b:B {k: $j}) DELETE r",
    "MATCH (a:A {k: $k})-[r:R]->(:B {k: $j}) SET r.n = 0",
    # A subquery, of which nothing is known beforehand.
    "CALL { MATCH (a:A) RETURN count(a) AS n } MERGE (t:Total {k: 'called'}) SET t.n = n",
    # The contract's own.
    "MERGE (n:NodeType {id: $id})\nSET n.updated = datetime()",
    "MERGE (p:Pattern {name: $k})\nMERGE (j:Journey {id: $j})\nMERGE (p)-[r:SELECTED_IN]->(j)\n"
    "SET r.timestamp = datetime(),\n    r.context = $s",
    "MERGE (j:Journey {id: $k})",
    "MATCH (j:Journey {id: $k})\nSET j.status = 'COMPLETE',\n    j.completed_at = datetime()",
)
# fmt: on

_LABELS = ("A", "B", "E")
_TYPES = ("R", "S", "T")
_NUMBERS = ("n", "x", "y")
_KEYS = st.sampled_from(["a", "b", "ü", "1", 1, 2]) | st.sampled_from(["a", "b"])
# Not true: FalkorDB takes it for 1 where the key has an index. Nor texts that are empty, or
# begin or end with white space: there an index never finds them.
_ODD_KEYS = st.sampled_from([None, 1.0, -1, "a\u2028b", "a  b", "a,b|c"])


@dataclass(frozen=True, slots=True)
class Example:
    """Rules as (types, mutations), events as (type, payload, chat), and how many events the worker takes at a time.

    Before that worker come others, as (batch, writes): each is ended behind that many writes, in the middle of a plan
    or not.
    """

    rules: list[tuple[list[str], list[str]]]
    events: list[tuple[str, dict[str, Any], int]]
    batch: int
    ended: list[tuple[int, int]]


@dataclass(slots=True)
class _Query:
    """A query on the way: what is bound, and which properties and types it has written."""

    choose: Callable[[Sequence[Any]], Any]
    clauses: list[str] = field(default_factory=list[str])
    nodes: list[str] = field(default_factory=list[str])
    edges: list[str] = field(default_factory=list[str])
    rows: list[str] = field(default_factory=list[str])
    """Variables of UNWIND."""
    written: set[str] = field(default_factory=set[str])
    merged: set[str] = field(default_factory=set[str])

    def one(self, *choices: str) -> str:
        return str(self.choose(choices))

    def number(self, least: int, most: int) -> int:
        return int(self.choose(range(least, most + 1)))

    def key(self) -> str:
        return self.one("$k", "$k", "$j", "'a'", *self.rows)

    def node(self, name: str) -> str:
        extra = self.one("", "", "", ", kind: 'c'", ", j: $j")
        return f"({name}:{self.one(*_LABELS)} {{k: {self.key()}{extra}}})"

    def item(self, name: str) -> str | None:
        """Return ``name.property = value`` for a property that the query has not written yet."""
        free = [text for text in ("n", "x", "y", "list", "text") if text not in self.written]
        if not free:
            return None
        what = self.one(*free)
        self.written.add(what)
        if what == "list":
            return f"{name}.list = coalesce({name}.list, []) + [{self.one('$id', '$k')}]"
        if what == "text":
            return f"{name}.text = {self.one('$s', '$id', 'null', "'lit'")}"
        own = f"{name}.{what}"
        return f"{own} = " + self.one(
            f"coalesce({own}, 0) + 1", f"coalesce({own}, $n)", "$n", f"CASE WHEN {own} < $n THEN $n ELSE {own} END",
            f"CASE WHEN $n IS NULL THEN {own} ELSE $n END", "size($xs)", "null", "1", "10 / $n",
        )  # fmt: skip

    def items(self, names: list[str]) -> str:
        found = [self.item(self.one(*names)) for _ in range(self.number(1, 3))]
        return ", ".join(item for item in found if item)

    def add(self) -> None:
        """Add a clause."""
        bound = self.nodes + self.edges
        ways = ["merge", "merge", "match", "create", "unwind", "optional"]
        ways += ["set", "set", "remove", "where", "foreach"] if bound else ["foreach"]
        ways += ["edge", "edge"] if len(self.nodes) > 1 else []
        ways += ["hop"] if self.nodes else []
        way = self.one(*ways)
        if way in ("match", "hop", "optional", "unwind") and self.clauses:  # both servers want it behind what writes
            self.clauses.append(f"WITH {', '.join([*self.nodes, *self.edges, *self.rows]) or '1 AS one'}")
        getattr(self, f"_{way}")()

    def _fresh(self) -> str:
        return f"v{len(self.nodes) + len(self.edges) + len(self.rows)}"

    def _merge(self) -> None:
        name = self._fresh()
        text = f"MERGE {self.node(name)}"
        for on in ("CREATE", "MATCH"):
            if self.number(0, 3) == 0:
                before = set(self.written)
                items = self.items([name])
                # Both branches may write the same property, for only one of them runs.
                if on == "CREATE":
                    self.written = before | ({"n"} if ".n =" in items else set())
                text += f" ON {on} SET {items}" if items else ""
        self.clauses.append(text)
        self.nodes.append(name)

    def _match(self) -> None:
        name = self._fresh()
        where = self.one("", "", f" WHERE {name}.n > 1", f" WHERE {name}.text IS NULL", f" WHERE {name}.k <> $j")
        self.clauses.append(f"MATCH {self.node(name)}{where}")
        self.nodes.append(name)

    def _optional(self) -> None:
        if not self.clauses:
            return self._match()
        name = self._fresh()
        self.clauses.append(f"OPTIONAL MATCH {self.node(name)}")
        self.clauses.append(f"WITH {', '.join([*self.nodes, *self.edges, *self.rows, name])} WHERE {name} IS NOT NULL")
        self.nodes.append(name)
        return None

    def _create(self) -> None:
        name = self._fresh()
        # For each node that was found another one like it: a few dozen events make a graph without end.
        label = "New" if self.nodes else self.one(*_LABELS, "New")
        self.clauses.append(f"CREATE ({name}:{label} {{k: {self.key()}, id: $id, n: $n}})")
        self.nodes.append(name)

    def _unwind(self) -> None:
        if self.rows:
            return
        name = self._fresh()
        self.clauses.append(f"UNWIND $xs AS {name}")
        self.rows.append(name)

    def _edge(self) -> None:
        kinds = [kind for kind in _TYPES if kind not in self.merged]
        if not kinds:
            return
        way = self.one("MERGE", "MERGE", "CREATE")
        kind = "U" if way == "CREATE" else self.one(*kinds)  # nothing finds a U: see _create
        self.merged.add(kind)
        name = self._fresh()
        start, end = self.one(*self.nodes), self.one(*self.nodes)
        self.clauses.append(f"{way} ({start})-[{name}:{kind}]->({end})")
        self.edges.append(name)

    def _hop(self) -> None:
        kinds = [kind for kind in _TYPES if kind not in self.merged]
        if not kinds:
            return
        name = self._fresh()
        end = self.one("", f":{self.one(*_LABELS)}", f":{self.one(*_LABELS)} {{k: $j}}")
        self.clauses.append(f"MATCH ({self.one(*self.nodes)})-[{name}:{self.one(*kinds)}]->({end})")
        self.edges.append(name)

    def _set(self) -> None:
        names = self.nodes + self.edges
        odd = self.number(0, 7)
        if odd == 0:
            self.clauses.append(f"SET {self.one(*self.nodes)}:{self.one('Hot', 'Cold')}")
        elif odd == 1 and not self.written:
            self.written |= {"n", "x", "y", "list", "text"}
            self.clauses.append(f"SET {self.one(*names)} += $m")
        elif items := self.items(names):
            self.clauses.append(f"SET {items}")

    def _remove(self) -> None:
        what = self.one(*_NUMBERS, "text")
        if what not in self.written:
            self.written.add(what)
            self.clauses.append(f"REMOVE {self.one(*self.nodes, *self.edges)}.{what}")

    def _where(self) -> None:
        keep = ", ".join([*self.nodes, *self.edges, *self.rows])
        name = self.one(*self.nodes)
        test = self.one(f"{name}.n > 1", f"{name}.x IS NULL", "$n > 1", f"coalesce({name}.y, 0) < 3", "$s IS NOT NULL")
        self.clauses.append(f"WITH {keep} WHERE {test}")

    def _foreach(self) -> None:
        over = self.one("$xs", "CASE WHEN $n > 1 THEN ['a'] ELSE [] END")
        item = self.item("f")
        if item:
            self.clauses.append(f"FOREACH (x IN {over} | MERGE (f:{self.one(*_LABELS)} {{k: x}}) SET {item})")

    def end(self) -> None:
        way = self.number(0, 9)
        name = self.one(*self.nodes) if self.nodes else ""
        last = self.clauses[-1].split(" ", 1)[0] if self.clauses else ""
        if name and way == 0:
            self.clauses.append(f"DETACH DELETE {name}")
        elif self.edges and way == 1:
            self.clauses.append(f"DELETE {self.one(*self.edges)}")
        elif name and way == 2:
            self.clauses.append("WITH count(*) AS rows MERGE (t:Total {k: $k}) SET t.rows = rows")
        elif last in ("MATCH", "OPTIONAL", "UNWIND", "WITH"):
            item = self.item(name) if name else None
            self.clauses.append(f"SET {item}" if item else "CREATE (:New {id: $id})")

    def text(self) -> str:
        if not self.clauses or not any(
            word in self.clauses[-1] for word in ("MERGE", "SET", "CREATE", "DELETE", "REMOVE")
        ):
            self.clauses.append("CREATE (:New {id: $id})")
        return " ".join(self.clauses)


def _made(choose: Callable[[Sequence[Any]], Any]) -> str:
    query = _Query(choose)
    for _ in range(query.number(1, 4)):
        query.add()
    query.end()
    return query.text()


@st.composite
def _queries(draw: DrawFn) -> str:
    return _made(lambda choices: draw(st.sampled_from(choices)))


def some_texts(seed: int, count: int) -> list[str]:
    """Return that many made queries, for servers that take long to compile a new one."""
    rng = random.Random(seed)
    return [_made(rng.choice) for _ in range(count)]


def _payloads(keys: SearchStrategy[Any]) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "k": keys,
            "j": keys,
            "n": st.sampled_from([0, 1, 2, 3, 4, 2, 3, None]),
            "xs": st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
            "m": st.sampled_from(
                [
                    {},
                    {"n": 1},
                    {"n": None, "list": ["q"]},
                    {"text": "ü\n'\"\\`"},
                    {"x": {"no": "map"}},
                    {"k": "b", "n": 2},
                ]
            ),
            "s": st.sampled_from(["plain", "", "ü💡", None]),
        }
    )


@st.composite
def examples(draw: DrawFn, *, events: int, texts: Sequence[str] = ()) -> Example:
    """Return a strategy for examples of at most that many events; half of the queries are of ``texts``, or new ones."""
    rules: list[tuple[list[str], list[str]]] = []
    # Half of the examples are about a single label and hardly more than one key, so that everything meets.
    narrow = draw(st.booleans())
    known = st.sampled_from([text for text in TEXTS if ":A {k" in text] if narrow else TEXTS)
    keys = st.sampled_from(["a", "a", "a", "b"]) if narrow else st.one_of(_KEYS, _KEYS, _KEYS, _ODD_KEYS)
    made = st.sampled_from(texts) if texts else _queries()
    for _ in range(draw(st.integers(1, 4))):
        types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True))
        mutations = [
            draw(made if draw(st.integers(0, 3 if narrow else 1)) == 0 else known)
            for _ in range(draw(st.integers(1, 3)))
        ]
        rules.append((types, mutations))
    event = st.tuples(st.sampled_from(TYPES), _payloads(keys), st.integers(0, 2))
    return Example(
        rules=rules,
        events=draw(st.lists(event, min_size=2, max_size=events)),
        batch=draw(st.sampled_from([events, events, 3, 1])),
        ended=draw(st.just([]) | st.lists(st.tuples(st.sampled_from([events, 5, 2]), st.integers(0, 9)), max_size=3)),
    )
