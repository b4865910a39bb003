"""Arguments that would leave each turn without context are refused where an object is built, and named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import OpenAI

from graphweft import Client, SyncClient
from graphweft.adapters.core import Adapter
from graphweft.adapters.model_clients import wrap_openai
from graphweft.hooks import GraphInjectionHooks
from graphweft_contracts import InvalidSettings
from graphweft_runtimes.runtime_adapter import RuntimeAdapter

BUS = "redis://127.0.0.1:1"


def wrapped(**settings: Any) -> Any:
    return wrap_openai(OpenAI(api_key="x"), **{"app": "acme", **settings})


def of_a_runtime(**settings: Any) -> Any:
    return RuntimeAdapter(None, "/test", settings)


def client(**settings: Any) -> Any:
    return Client(BUS, **settings)


def sync_client(**settings: Any) -> Any:
    return SyncClient(BUS, **settings)


def hooks(**settings: Any) -> Any:
    return GraphInjectionHooks(Client(BUS), **settings)


Make = Callable[..., Any]


@pytest.mark.parametrize("budget_ms", ["500", None, 0, -1, True, float("nan")])
@pytest.mark.parametrize("make", [Adapter, of_a_runtime, wrapped, client, sync_client, hooks])
def test_a_budget_is_a_number_above_0(make: Make, budget_ms: Any) -> None:
    if make is hooks and budget_ms is None:  # that of the client
        return
    with pytest.raises(InvalidSettings, match=r"invalid budget_ms .*: expected a number of milliseconds above 0"):
        make(budget_ms=budget_ms)


@pytest.mark.parametrize("max_tokens", ["500", 0, -1, True, 1.5])
@pytest.mark.parametrize("make", [Adapter, of_a_runtime, wrapped, hooks])
def test_a_limit_of_tokens_is_a_whole_number_above_0(make: Make, max_tokens: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"invalid max_tokens .*: expected a whole number above 0, or None"):
        make(max_tokens=max_tokens)


@pytest.mark.parametrize("app", ["ac me", "acme\n", "a" * 65, 5])
@pytest.mark.parametrize("make", [Adapter, of_a_runtime, wrapped, client, sync_client, hooks])
def test_an_app_has_a_name_that_a_graph_can_have(make: Make, app: Any) -> None:
    name = "app" if make is wrapped else "app_id"
    with pytest.raises(InvalidSettings, match=rf"invalid {name} .*: expected 1 to 64 characters"):
        make(**{name: app})


async def test_a_turn_with_an_invalid_budget_goes_on_without_context() -> None:
    async with Client(BUS, app_id="acme") as calling:
        async with calling.turn(agent="a", chat="c", budget_ms="500") as turn:  # type: ignore[arg-type]
            turn.answer("Hello.")
        assert turn.context.reason == "invalid_request"
        assert turn.context.detail == "budget_ms: expected a number of milliseconds"
        await calling.aclose(drain_s=0)


@pytest.mark.parametrize("name", ["chat", "user"])
@pytest.mark.parametrize("value", ["a ", "\ta", "a\nb", "x" * 257])
def test_a_wrapped_client_names_a_scope_that_memories_cannot_have(name: str, value: str) -> None:
    with pytest.raises(InvalidSettings, match=rf"invalid {name} .*: memories belong to it"):
        wrapped(**{name: value})
    assert wrapped(**{"chat": "a b", "user": "Ann Lee", name: value}, remember=False)
    assert wrapped(chat="a b", user="Ann Lee")
