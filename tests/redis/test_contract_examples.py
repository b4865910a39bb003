"""The rule contract's examples, word for word (`tests/fixtures/contract`): they lint, load and run as it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio as redis
from tests.services.buses import applied
from tests.services.rules import load_rules
from tests.services.workers import working

from graphweft import Client, Event, GraphInjectionHooks
from graphweft_contracts.prompt_text import inside
from graphweft_rules import GraphInjectionLoader, RulesError, RuleSet, lint
from graphweft_workers.drivers import dialects
from graphweft_workers.drivers.falkordb.store import FalkorDBStore
from graphweft_workers.drivers.redis.requests import RedisRequestQueue
from graphweft_workers.drivers.redis.timing import RedisBusTiming
from graphweft_workers.engine.plan.core_schema import CORE_KEYS
from graphweft_workers.injection.pipeline import ContextPipeline
from graphweft_workers.injection.responder import InjectionResponder
from graphweft_workers.ports.bus import Bus

pytestmark = pytest.mark.integration
CONTRACT = Path(__file__).parents[1] / "fixtures" / "contract"
APP = "shop"
MARKDOWN = """\
## Successful Patterns
- **CRM Pattern**: Customer management workflow (92% success)
- **Legal Brief**: Document generation (89% success)"""
"""What the contract shows under "Injected into PatternAgent's context"."""


SHORT_WAITS = RedisBusTiming(request_s=0.05)
"""An idle responder waits this long for requests before it sees that it is to stop."""


@pytest.fixture
def rules() -> RuleSet:
    return load_rules(CONTRACT)


@pytest.fixture
async def client(url: str, graph: FalkorDBStore, rules: RuleSet) -> AsyncIterator[Client]:
    """A client with a responder at work on the contract's rules."""
    queue = RedisRequestQueue(url, consumer="r", timing=SHORT_WAITS)
    pipeline = ContextPipeline(rules, graph)
    responder = InjectionResponder(queue, pipeline.answer)
    task = asyncio.create_task(responder.run())
    try:
        async with Client(url, app_id=APP, budget_ms=120_000) as made:
            yield made
    finally:
        responder.stop()
        await task
        await queue.aclose()
        await pipeline.aclose()


async def write(url: str, statement: str, app: str = APP) -> None:
    """Write to an app's graph without any code of ours."""
    async with redis.Redis.from_url(url) as raw:
        await raw.execute_command("GRAPH.QUERY", f"mozaiks_{app}", statement)


async def rows(graph: FalkorDBStore, statement: str) -> list[tuple[Any, ...]]:
    return list((await graph.read(APP, statement, {}, timeout_s=120)).rows)


def turn(workflow: str, agent: str = "PatternAgent", *, success: bool | None = True, **context: Any) -> Event:
    return Event.create(
        "agent.turn_complete",
        app_id=APP,
        chat_id="chat_abc123",
        workflow=workflow,
        data={"agent_name": agent, "response": "done", "success": success},
        context=context,
        time=datetime(2026, 2, 1, 10, 0, tzinfo=UTC),
    )


def test_the_examples_lint_without_a_finding() -> None:
    assert lint([CONTRACT], dialects()) == []
    assert set(load_rules(CONTRACT).workflows) == {
        "AgentGenerator",
        "FullSchema",
        "InjectionExample",
        "MutationExample",
    }


async def test_the_markdown_example_comes_out_character_by_character(url: str, client: Client) -> None:
    await write(
        url,
        """CREATE (:Pattern {name: 'Legal Brief', description: 'Document generation'})
               -[:USED_IN]->(:App {id: 'a2', success_rate: 0.89}),
           (:Pattern {name: 'CRM Pattern', description: 'Customer management workflow'})
               -[:USED_IN]->(:App {id: 'a1', success_rate: 0.92}),
           (:Pattern {name: 'Weak', description: 'not proven'})-[:USED_IN]->(:App {id: 'a3', success_rate: 0.8})""",
    )
    reply = await client.context(agent="PatternAgent", chat_id="c", workflow="InjectionExample")
    assert (reply.reason, reply.missing) == (None, ())
    assert inside(reply.text) == MARKDOWN
    assert reply.injected == {"successful_patterns": MARKDOWN.partition("\n")[2]}


async def test_the_hook_of_the_contract_gives_the_injected_context(url: str, client: Client) -> None:
    await write(
        url, "CREATE (:Pattern {name: 'A', description: 'b'})-[:USED_IN]->(:App {id: 'a1', success_rate: 0.999})"
    )
    hooks = GraphInjectionHooks(client, app_id=APP, workflow_name="InjectionExample", budget_ms=120_000)
    injected = await hooks.before_agent_turn("PatternAgent", {"chat_id": "c"})
    assert injected == {"successful_patterns": "- **A**: b (100% success)"}


async def test_no_more_than_five_patterns_are_injected(url: str, client: Client) -> None:
    await write(
        url,
        "UNWIND range(1, 8) AS i CREATE (:Pattern {name: 'p' + toString(i), description: 'd'})"
        "-[:USED_IN]->(:App {id: i, success_rate: 0.81 + i / 100.0})",
    )
    reply = await client.context(agent="PatternAgent", chat_id="c", workflow="InjectionExample")
    lines = reply.injected["successful_patterns"].splitlines()
    assert lines == [f"- **p{i}**: d ({81 + i}% success)" for i in (8, 7, 6, 5, 4)]
    other = await client.context(agent="OtherAgent", chat_id="c", workflow="InjectionExample")
    assert (other.blocks, other.missing, other.reason) == ((), (), None)


async def test_track_pattern_usage(bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client) -> None:
    context = {"selected_pattern": "CRM Pattern", "brief_summary": "a shop's customers"}
    await client.emit(turn("MutationExample", **context))
    await client.emit(turn("MutationExample", **context))
    await client.emit(turn("MutationExample", success=False, **context | {"selected_pattern": "failed"}))
    await client.emit(turn("MutationExample", success=None, **context | {"selected_pattern": "unknown"}))
    await client.emit(turn("MutationExample", "OtherAgent", **context | {"selected_pattern": "other agent"}))
    await client.emit(turn("MutationExample", selected_pattern="no summary"))
    async with working(bus, graph, rules):
        await applied(bus)
    assert await rows(
        graph, "MATCH (p:Pattern)-[r:SELECTED_IN]->(j:Journey) RETURN p.name, j.id, r.timestamp, r.context"
    ) == [("CRM Pattern", "chat_abc123", "2026-02-01T10:00:00.000000Z", "a shop's customers")]
    assert await rows(graph, "MATCH (p:Pattern) RETURN p.name") == [("CRM Pattern",)]
    assert {letter.reason for letter in await bus.dead_letters.read(limit=10)} <= {"skipped"}


async def test_track_journey_is_inherited_from_the_base(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client
) -> None:
    await client.emit(turn("MutationExample", selected_pattern="CRM Pattern", brief_summary="s"))
    await client.emit(
        Event.create(
            "workflow.complete",
            app_id=APP,
            chat_id="chat_abc123",
            workflow="AgentGenerator",
            data={"status": "success", "duration": 1.5, "outputs": {}},
            time=datetime(2026, 2, 1, 11, 30, tzinfo=UTC),
        )
    )
    async with working(bus, graph, rules):
        await applied(bus)
    assert await rows(graph, "MATCH (j:Journey) RETURN j.id, j.status, j.completed_at") == [
        ("chat_abc123", "COMPLETE", "2026-02-01T11:30:00.000000Z")
    ]


async def test_the_base_and_the_child_inject_together(url: str, client: Client) -> None:
    await write(
        url,
        """CREATE (u:User {id: 'user_123'}), (:User {id: 'other'})-[:COMPLETED]->(:Workflow {name: 'theirs'})
           FOREACH (i IN range(1, 4) |
             CREATE (u)-[:COMPLETED]->(:Workflow {name: 'w' + toString(i), completed_at: '2026-01-0' + toString(i)}))
           CREATE (:App {id: 1, name: 'Desk', category: 'crm', architecture: 'event-driven'}),
                  (:App {id: 2, name: 'Till', category: 'pos', architecture: 'monolith'})""",
    )
    reply = await client.context(
        agent="BlueprintAgent",
        chat_id="c",
        workflow="AgentGenerator",
        context={"user_id": "user_123", "app_category": "crm"},
    )
    assert (reply.reason, reply.missing) == (None, ())
    assert [block.name for block in reply.blocks] == ["recent_workflows", "reference_apps"]
    assert reply.injected["recent_workflows"] == [{"name": f"w{i}", "completed_at": f"2026-01-0{i}"} for i in (4, 3, 2)]
    text = reply.injected["reference_apps"]
    assert isinstance(text, str)
    assert json.loads(text) == [{"name": "Desk", "architecture": "event-driven"}]
    assert "\n" in text, "json is pretty-printed"
    # Every agent gets the base's block, no other agent gets the child's.
    other = await client.context(
        agent="Anyone", chat_id="c", workflow="AgentGenerator", context={"user_id": "user_123", "app_category": "crm"}
    )
    assert [block.name for block in other.blocks] == ["recent_workflows"]


async def test_the_full_schema(url: str, bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client) -> None:
    await client.emit(turn("FullSchema", "AgentA", entity_id="e1"))
    await client.emit(turn("FullSchema", "AgentB", entity_id="e2"))
    for entity, agent in (("e3", {"agent_name": "AgentA"}), ("e4", {})):
        await client.emit(
            Event.create(
                "workflow.phase_complete",
                app_id=APP,
                chat_id="chat_abc123",
                workflow="FullSchema",
                data={"phase_name": "plan", "next_phase": "build", "success": True, **agent},
                context={"entity_id": entity},
                time=datetime(2026, 2, 1, 10, 0, tzinfo=UTC),
            )
        )
    async with working(bus, graph, rules):
        await applied(bus)
    assert await rows(graph, "MATCH (n:NodeType) RETURN n.id, n.updated ORDER BY n.id") == [
        ("e1", "2026-02-01T10:00:00.000000Z"),
        ("e3", "2026-02-01T10:00:00.000000Z"),
    ]
    await write(url, "UNWIND range(1, 12) AS i CREATE (:NodeType {prop: 'x', field: i}), (:NodeType {prop: 'y'})")
    for agent in ("AgentA", "AgentB"):
        reply = await client.context(
            agent=agent,
            chat_id="c",
            workflow="FullSchema",
            context={"phase": "planning", "some_value": "x", "user_id": 1},
        )
        assert reply.missing == ()
        found = reply.injected["injection_name"]
        assert len(found) == 10
        assert {*range(1, 13)} >= {row["result"] for row in found}
        assert {key for row in found for key in row} == {"result"}
    for context in ({"phase": "building", "some_value": "x", "user_id": 1}, {"some_value": "x", "user_id": 1}):
        reply = await client.context(agent="AgentA", chat_id="c", workflow="FullSchema", context=context)
        assert [block.name for block in reply.blocks] == ["recent_workflows"]
        assert reply.missing == ()


def names(rules: Any) -> list[str]:
    return [rule.name for rule in rules]


def test_the_loader_answers_as_the_contract_describes() -> None:
    loader = GraphInjectionLoader()
    assert names(loader.get_injection_rules("BlueprintAgent")) == []
    config = loader.load(CONTRACT / "AgentGenerator")
    assert config is not None
    assert names(config.injection_rules) == ["common_user_context", "generator_specific"]
    assert names(config.mutation_rules) == ["track_journey"]
    assert names(loader.get_injection_rules("BlueprintAgent")) == ["common_user_context", "generator_specific"]
    assert names(loader.get_injection_rules("Anyone")) == ["common_user_context"]
    assert names(loader.get_mutation_rules("workflow.complete")) == ["track_journey"]
    assert names(loader.get_mutation_rules("workflow.complete", "Anyone")) == ["track_journey"]
    assert names(loader.get_mutation_rules("workflow.error")) == []
    loader.load(CONTRACT / "MutationExample")
    assert names(loader.get_mutation_rules("agent.turn_complete", "PatternAgent")) == ["track_pattern_usage"]
    assert names(loader.get_mutation_rules("agent.turn_complete", "Anyone")) == []
    assert loader.load(CONTRACT / "_shared") is None


def test_a_child_replaces_rules_of_the_same_name_and_comes_after_the_rest(tmp_path: Path) -> None:
    (tmp_path / "_shared").mkdir()
    (tmp_path / "W").mkdir()
    base = (CONTRACT / "_shared" / "graph_injection_base.yaml").read_text()
    (tmp_path / "_shared" / "graph_injection_base.yaml").write_text(
        base.replace("mutation_rules:\n", "mutation_rules:\n  - {name: kept, events: [a.b], mutations: []}\n").replace(
            "mutations: []", "mutations: [{id: k, cypher: 'MERGE (k:K {id: 1})'}]"
        )
    )
    (tmp_path / "W" / "graph_injection.yaml").write_text(
        """extends: "../_shared/graph_injection_base.yaml"
injection_rules:
  - name: common_user_context
    agents: [OnlyMe]
    queries:
      - {id: mine, cypher: "RETURN 1 AS one", inject_as: mine, format: single}
mutation_rules:
  - name: added
    events: [workflow.complete]
    mutations: [{id: a, cypher: "MERGE (a:A {id: 1})"}]
"""
    )
    loader = GraphInjectionLoader()
    config = loader.load(tmp_path / "W")
    assert config is not None
    assert names(config.mutation_rules) == ["kept", "track_journey", "added"]
    assert names(loader.get_mutation_rules("workflow.complete")) == ["track_journey", "added"]
    assert names(loader.get_injection_rules("Anyone")) == []
    [rule] = loader.get_injection_rules("OnlyMe")
    assert [query.id for query in rule.queries] == ["mine"]


def test_a_base_that_is_not_there_stops_the_load(tmp_path: Path) -> None:
    file = tmp_path / "graph_injection.yaml"
    file.write_text('extends: "../_shared/none.yaml"\nversion: "1.0"\n')
    with pytest.raises(RulesError, match=rf"{file}:1:10: .*none\.yaml"):
        GraphInjectionLoader().load(tmp_path)


async def test_an_apps_graph_has_the_indexes_of_the_workflows_that_it_uses(
    bus: Bus, graph: FalkorDBStore, rules: RuleSet, client: Client
) -> None:
    await client.emit(turn("MutationExample", selected_pattern="CRM Pattern", brief_summary="s"))
    await client.emit(turn("FullSchema", "AgentA", entity_id="n"))
    async with working(bus, graph, rules):
        await applied(bus)
    found = await rows(graph, "CALL db.indexes() YIELD label, properties RETURN label, properties")
    there = {(label, name) for label, properties in found for name in properties}
    assert there >= CORE_KEYS
    used = {("Pattern", "name"), ("Journey", "id"), ("NodeType", "prop"), ("NodeType", "id"), ("User", "id")}
    assert used <= there & rules.keys
    # No workflow of the app writes or looks up apps by their category.
    assert ("App", "category") in rules.keys - there
