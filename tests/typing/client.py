"""What type checkers see of the client. mypy and basedpyright read this file; nothing runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from tests.services.layouts import spread

from graphweft import (
    Block,
    Client,
    ClientStats,
    ContextReply,
    Event,
    GraphInjectionHooks,
    MemoryClient,
    MemoryScope,
    Missing,
    SyncClient,
    SyncMemoryClient,
    create_graph_injection_hook,
    create_graph_mutation_hook,
)
from graphweft.adapters.core import Adapter
from graphweft.adapters.sender import AdapterStats
from graphweft.hooks import InjectionHook, MutationHook
from graphweft.settings import ClientSettings
from graphweft.transport import Outgoing, Transport
from graphweft.transports.redis.transport import RedisTransport
from graphweft_contracts import ContextRequest
from graphweft_runtimes.ag2 import AG2Adapter
from graphweft_runtimes.ag2_classic import AG2ClassicAdapter


class LoopBack:
    """A runtime's own transport: the protocol is all it has to fulfil."""

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        """Take everything."""
        return [event.key for event in events]

    async def request(self, request: ContextRequest) -> ContextReply:
        """Know nothing."""
        return ContextReply(id=request.id)

    async def aclose(self) -> None:
        """Hold nothing."""


async def asynchronous(event: Event, variables: Mapping[str, int]) -> None:
    """A runtime publishes and asks without a cast."""
    transport: Transport = LoopBack()
    async with Client("redis://localhost", app_id="shop", buffer=10, budget_ms=100, transport=transport) as client:
        assert_type(client, Client)
        assert_type(await client.emit(event), str | None)
        assert_type(await client.emit(event, wait_s=0.5), str | None)
        reply = await client.context(agent="Planner", chat_id="c1", context=variables, budget_ms=200)
        assert_type(reply, ContextReply)
        after = await client.emit(event)
        await client.context(agent="Planner", chat_id="c1", max_tokens=500, after=after, explain=True)
        assert_type(await client.emit_all([event, event], wait_s=0.5), list[str | None])
        assert_type(reply.blocks, tuple[Block, ...])
        assert_type(reply.missing, tuple[Missing, ...])
        assert_type(reply.injected, dict[str, Any])
        assert_type(await client.flush(), bool)
        assert_type(client.stats, ClientStats)
        assert_type(client.stats.sent + client.stats.dropped, int)
    Client()
    await client.aclose(drain_s=1.0)
    await client.emit({"type": "order.paid"})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.context(agent="Planner")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.context("Planner", "c1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Client(transport=object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def synchronous(event: Event) -> None:
    """The same without ``await``."""
    with SyncClient("redis://localhost", workflow="Sales") as client:
        assert_type(client, SyncClient)
        assert_type(client.emit(event, wait_s=1), str | None)
        assert_type(client.context(agent="Planner", chat_id="c1", context={"phase": "planning"}), ContextReply)
        assert_type(client.context(agent="P", chat_id="c1", max_tokens=5, after="0:1-0", explain=True), ContextReply)
        assert_type(client.emit_all((event,)), list[str | None])
        assert_type(client.flush(1.0), bool)
        assert_type(client.stats, ClientStats)
    client.close(0.0)
    client.stats = ClientStats()  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def memories(client: Client, sync: SyncClient, messages: list[dict[str, str]]) -> None:
    """Searching and remembering, with and without ``await``."""
    scope = MemoryScope(user_id="u1")
    reply = await client.search("dogs", memory=scope, index_type="hybrid", top_k=3, params={"a": 1}, after="0:1-0")
    assert_type(reply, ContextReply)
    assert_type(reply.results, list[dict[str, Any]])
    assert_type(sync.search(messages, index_name="chunks", message_history_count=3), ContextReply)
    both = MemoryClient(client, user_id="u1", memory_roles=["user"], read_own_writes=True)
    both.thread_created(None)
    assert_type(both.scope, MemoryScope)
    assert_type(await both.remember(messages), str | None)
    assert_type(await both.recall("dogs", index_type="vector", budget_ms=100), ContextReply)
    assert_type(await both.erase_user(), str)
    alone = SyncMemoryClient(sync, scope_to_per_operation_thread_id=True)
    assert_type(alone.remember(messages, wait_s=0.5), str | None)
    assert_type(alone.recall(messages), ContextReply)
    assert_type(alone.erase_user("u1"), str)
    await client.search("dogs", index_type="graph")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.search("dogs", "chunks")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    MemoryClient(sync, user_id="u1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def hooks(client: Client, context: dict[str, Any]) -> None:
    """Hooks have the rule contract's signatures, as methods and as functions."""
    both = GraphInjectionHooks(client, app_id="shop", chat_id="c1", workflow_name="Sales", budget_ms=300, max_tokens=9)
    GraphInjectionHooks(client, read_own_writes=True)
    assert_type(await both.before_agent_turn("Planner", context), dict[str, Any])
    await both.on_event("order.paid", context, {"total": 5}, "Planner")
    await both.on_event("order.paid", context, {"total": 5}, agent_name=None)
    await both.aclose()
    before = create_graph_injection_hook(client, user_id="u1")
    assert_type(before, InjectionHook)
    assert_type(await before("Planner", context), dict[str, Any])
    after = create_graph_mutation_hook()
    assert_type(after, MutationHook)
    await after("order.paid", context, {}, agent_name="Planner")
    same: MutationHook = both.on_event
    await same("order.paid", context, {})
    await both.on_event("order.paid", context)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await before("Planner")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def adapters(client: Client, variables: dict[str, Any], agent: object) -> None:
    """A runtime's callbacks go in, events and context come out."""

    def redact(type: str, data: dict[str, Any]) -> dict[str, Any] | None:
        return None if type == "context.request" else data

    core = Adapter(client, app_id="shop", budget_ms=50, redact=redact, carried={"phase"}, idle_s=60)
    core.start_run(variables)
    core.start_turn(variables, "Planner", fresh=True, sequential=True)
    assert_type(core.context(variables, "Planner"), ContextReply)
    assert_type(await core.acontext(variables, "Planner", run="r1"), ContextReply)
    core.start_tool(variables, "search", "t1", arguments={"q": 1})
    core.end_tool(variables, "search", "t1", result=[1], success=True)
    core.model_call(variables, "Planner", success=True, about={"model": "m"})
    core.emit(variables, "order.paid", {"total": 5}, agent="Planner")
    core.fail_turn(variables, "Planner", ValueError())
    core.end_run(variables, outputs="done")
    assert_type(core.stats, AdapterStats)
    assert_type(core.flush(), bool)
    await core.aclose()
    async with AG2ClassicAdapter(client=client, max_tokens=500) as classic:
        classic.attach(agent)
        assert_type(classic.core, Adapter)
    with AG2Adapter(core) as ag2:
        ag2.attach(agent, agent)
        ag2.publish(agent, "order.paid", {"total": 5})
    core.start_turn(variables)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    core.context("Planner", variables)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def transports(events: Sequence[Outgoing], request: ContextRequest, environment: Mapping[str, str]) -> None:
    """The driver fulfils the protocol."""
    transport: Transport = RedisTransport(ClientSettings.from_environment(environment).bus_url, new=spread(2))
    assert_type(await transport.append(events), list[str])
    assert_type(await transport.request(request), ContextReply)
    assert_type(events[0].fields, Mapping[bytes, bytes])
