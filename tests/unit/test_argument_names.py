"""One vocabulary at every entrance of the Python package, and errors that name what to write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from graphweft import Client, Event, GraphInjectionHooks, MemoryClient, SyncClient
from graphweft.adapters.core import Adapter
from graphweft.transport import Outgoing
from graphweft_contracts import ContextReply, ContextRequest, InvalidSettings


class Kept:
    """A bus that keeps what it gets."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.requests: list[ContextRequest] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        self.events += [json.loads(event.fields[b"data"]) for event in events]
        return [f"0:{number}" for number, _ in enumerate(events)]

    async def request(self, request: ContextRequest) -> ContextReply:
        self.requests.append(request)
        return ContextReply(id=request.id)

    async def aclose(self) -> None:
        pass


async def test_the_short_and_the_long_names_are_the_same_everywhere() -> None:
    kept = Kept()
    given: Any = Client
    async with given(transport=kept, app="shop", workflow_name="support") as client:
        await client.context(agent_name="planner", chat="c1", user="ada")
        await client.context(agent="planner", chat_id="c1", user_id="ada", app_id="shop", workflow="support")
        await client.search("x", app="shop", memory={"user_id": "ada"})
        async with client.turn(agent="planner", chat_id="c2", user_id="ada", app_id="shop"):
            pass
        memories: Any = MemoryClient
        await memories(client, app="shop", user="ada").remember([{"role": "user", "content": "hi"}])
        create: Any = Event.create
        await client.emit(create("order.paid", app="shop", chat="c1", user="ada", workflow_name="support"))
    first, second = kept.requests[:2]
    assert first.model_dump(exclude={"id", "deadline_ms"}) == second.model_dump(exclude={"id", "deadline_ms"})
    assert {event["appid"] for event in kept.events} == {"shop"}
    assert {event["userid"] for event in kept.events} == {"ada"}


def _given(function: Any, *arguments: Any, **named: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **named)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (_given(Client, ap_id="a"), r"Client\(\) has no argument 'ap_id'; did you mean 'app_id'\?"),
        (_given(SyncClient, budget="a"), r"SyncClient\(\) has no argument 'budget'; did you mean 'budget_ms'\?"),
        (_given(Client, app="a", app_id="a"), r"Client\(\) has 'app_id' under two names"),
        (
            _given(Event.create, "a.b", app="a", chatt="c"),
            r"Event.create\(\) has no argument 'chatt'; did you mean 'chat_id'",
        ),
        (
            _given(Adapter, workflow_nam="a"),
            r"Adapter\(\) has no argument 'workflow_nam'; did you mean 'workflow_name'",
        ),
        (_given(GraphInjectionHooks, colour="a"), r"GraphInjectionHooks\(\) has no argument 'colour'$"),
    ],
)
def test_an_unknown_argument_names_the_one_that_is_meant(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize("make", [Client, SyncClient])
def test_an_app_in_the_place_of_the_url_is_told_what_to_write(make: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidSettings, match=r"it has no scheme.*For the name of an app write app_id=") as refused:
        make("acme")
    assert "acme" not in str(refused.value)


async def test_an_event_that_is_a_map_is_refused_with_what_to_give(caplog: pytest.LogCaptureFixture) -> None:
    async with Client(transport=Kept()) as client:
        given: Any = {"type": "order.paid"}
        [fault] = await client.emit_each([given])
        assert "expected an Event, found dict: pass Event.create(type, app_id=" in str(fault)
        assert client.stats.rejected == 1
    assert "expected an Event, found dict" in caplog.text


def test_a_client_in_a_plain_with_names_the_two_ways() -> None:
    client: Any = Client(transport=Kept())
    with pytest.raises(TypeError, match="write `async with`, or use SyncClient"), client:
        pass
