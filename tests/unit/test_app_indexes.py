"""Which indexes the graph of an app gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from tests.services.rules import PACKS

from graphweft_contracts import Event
from graphweft_rules import RuleSet
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_workers.drivers.falkordb.dialect import FALKORDB
from graphweft_workers.engine.apply.app_indexes import AppIndexes
from graphweft_workers.engine.log.read import LoggedEvent
from graphweft_workers.engine.plan.core_schema import CORE_KEYS, FACT_KEYS
from graphweft_workers.ports.event_log import Entry

FACTS = FACT_KEYS - CORE_KEYS


def workflow(mutation: str, query: str = "", graphrag: bool = False, *searches: dict[str, Any]) -> bytes:
    queries: list[dict[str, Any]] = [{"id": "q", "cypher": query, "inject_as": "q"}] if query else []
    queries += [
        {"id": f"s{number}", "search": {"query": "$context.q", **search}, "inject_as": f"s{number}"}
        for number, search in enumerate(searches)
    ]
    queries += [{"id": "g", "graphrag": {"query": "$context.q"}, "inject_as": "g"}] if graphrag else []
    body: dict[str, Any] = {
        "mutation_rules": [{"name": "r", "events": ["*"], "mutations": [{"id": "m", "cypher": mutation}]}]
    }
    body["injection_rules"] = [{"name": "i", "agents": ["*"], "queries": queries}] if queries else []
    return json.dumps(body).encode()


def rule_set(**workflows: bytes) -> RuleSet:
    files = {f"{name}/graph_injection.yaml": text for name, text in workflows.items()}
    return RuleSet.of_stored(files, PACKS, (FALKORDB,), summary=RuleSet.of_files(files, PACKS, (FALKORDB,)).summary)


RULES = {
    "Calls": workflow("MERGE (t:Tool {name: 'x'}) MERGE (c:Call {id: 1})"),
    "Orders": workflow("MERGE (o:Order {id: 1})", "MATCH (o:Order {id: 2}) RETURN o"),
    "Asks": workflow("MERGE (q:Question {id: 1})", "MATCH (c:Call {kind: 'x'}), (o:Order {kind: 'y'}) RETURN c, o"),
}


class Graph:
    def __init__(self) -> None:
        self.prepared: list[tuple[str, frozenset[tuple[str, str]]]] = []
        self.search: list[list[tuple[str, int | None]]] = []

    async def prepare(self, app_id: str, keys: Iterable[tuple[str, str]], indexes: Iterable[SearchIndex] = ()) -> None:
        self.prepared.append((app_id, frozenset(keys) - CORE_KEYS))
        self.search.append([(f"{index.label}.{index.properties[0]}", index.dimensions) for index in indexes])


def prepared(
    *steps: tuple[str, str | None] | None, rules: RuleSet | None = None, into: AppIndexes | None = None
) -> list[tuple[str, set[Any]]]:
    """Return what is prepared for events of (app, workflow); None forgets the first app."""
    graph = Graph()
    indexes = into or AppIndexes(graph, frozenset())  # type: ignore[arg-type]
    active = rules or rule_set(**RULES)

    async def run() -> None:
        for step in steps:
            if step is None:
                indexes.forget("acme")
                continue
            app, name = step
            event = Event.create("a.b", app_id=app, chat_id="c", workflow=name, data={})
            entry = Entry(offset="1", fields={}, received=datetime.now(UTC))
            await indexes.prepare(app, [LoggedEvent(entry=entry, plain=event, mutations=(), rules=active)])

    asyncio.run(run())
    return [(app, set(keys)) for app, keys in graph.prepared]


def test_an_app_gets_the_indexes_of_its_workflows_once() -> None:
    orders = {("Order", "id"), ("Order", "kind")}
    assert prepared(("acme", "Orders"), ("acme", "Orders"), ("other", "Orders")) == [
        ("acme", orders),
        ("other", orders),
    ]
    later = [keys for _, keys in prepared(("acme", "Orders"), ("acme", "Calls"))]
    assert ("Call", "id") not in later[0]
    assert ("Call", "id") in later[1]


def test_lookups_of_other_workflows_in_what_an_app_writes_have_indexes() -> None:
    [(_, keys)] = prepared(("acme", "Calls"))
    assert ("Call", "kind") in keys
    assert ("Order", "kind") not in keys


def test_an_event_without_rules_and_a_deleted_graph() -> None:
    assert prepared(("acme", None)) == [("acme", set())]
    assert len(prepared(("acme", "Orders"), None, ("acme", "Orders"))) == 2


def test_facts_are_looked_up_by_any_workflow() -> None:
    rules = rule_set(**RULES, Facts=workflow("MERGE (f:F {id: 1})", graphrag=True))
    [(_, keys)] = prepared(("acme", "Calls"), rules=rules)
    assert keys >= FACTS


def test_names_of_workflows_without_rules_are_not_kept() -> None:
    """An event of a pack may have any workflow, so these names are without end."""
    indexes = AppIndexes(Graph(), frozenset())  # type: ignore[arg-type]
    active = rule_set(**RULES)
    prepared(("acme", "Orders"), *[("acme", f"unknown-{number}") for number in range(50)], into=indexes, rules=active)
    assert {name for _, name in indexes._apps["acme"].seen} == {"Orders", None}  # pyright: ignore[reportPrivateUsage]


NEAR = {"index_name": "Order.vector", "dimensions": 4}
ORDER = "MERGE (o:Order {id: 1}) SET o.text = 'x'"


def searched(*steps: tuple[str, str, RuleSet]) -> list[tuple[str, list[tuple[str, int | None]]]]:
    """Return the search indexes that are prepared for events of (app, workflow, rule set)."""
    graph = Graph()
    indexes = AppIndexes(graph, frozenset())  # type: ignore[arg-type]

    async def run() -> None:
        for app, name, rules in steps:
            event = Event.create("a.b", app_id=app, chat_id="c", workflow=name, data={})
            entry = Entry(offset="1", fields={}, received=datetime.now(UTC))
            await indexes.prepare(app, [LoggedEvent(entry=entry, plain=event, mutations=(), rules=rules)])

    asyncio.run(run())
    return [(app, search) for (app, _), search in zip(graph.prepared, graph.search, strict=True)]


def test_a_search_index_comes_with_what_writes_its_label() -> None:
    words = {"index_name": "Order.text", "index_type": "fulltext"}
    rules = rule_set(
        **RULES | {"Orders": workflow(ORDER)}, Finds=workflow("MERGE (f:F {id: 1})", "", False, NEAR, words)
    )
    both = [("Order.text", None), ("Order.vector", 4)]
    assert searched(("acme", "Calls", rules), ("acme", "Orders", rules), ("acme", "Orders", rules)) == [
        ("acme", []), ("acme", both),
    ]  # fmt: skip
    assert searched(("acme", "Finds", rules)) == [("acme", [])]


def test_an_index_of_another_length_is_prepared_whenever_the_rules_change_it() -> None:
    four = rule_set(Orders=workflow(ORDER, "", False, NEAR))
    eight = rule_set(Orders=workflow(ORDER, "", False, {**NEAR, "dimensions": 8}))
    order = [("acme", "Orders", rules) for rules in (four, four, eight, eight, four)]
    assert [size for _, [(_, size)] in searched(*order)] == [4, 8, 4]


def test_labels_of_packs_get_no_index_of_rules() -> None:
    named = {"index_name": "Memory.text", "index_type": "fulltext"}
    rules = rule_set(W=workflow("MERGE (m:Memory {id: 1}) SET m.text = 'x'", "", False, named))
    assert rules.summary.search_indexes
    assert searched(("acme", "W", rules)) == [("acme", [])]


def test_what_was_made_is_known_for_snapshots() -> None:
    indexes = AppIndexes(Graph(), frozenset())  # type: ignore[arg-type]
    prepared(("acme", "Orders"), into=indexes, rules=rule_set(Orders=workflow(ORDER, "", False, NEAR)))
    _, made = indexes.made("acme")
    assert [(index.label, index.properties, index.dimensions) for index in made] == [("Order", ("vector",), 4)]
