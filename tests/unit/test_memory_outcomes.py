"""What the memory client says of its writes: on the bus, waiting, or refused. A refusal never looks like success."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from tests.services.virtual_time import VIRTUAL

from graphweft import Client, MemoryClient, MemoryScope, SyncClient, SyncMemoryClient
from graphweft.transport import Outgoing
from graphweft_contracts import (
    Block,
    BusUnavailable,
    ContextReply,
    ContextRequest,
    Event,
    InvalidEvent,
    PartitionRefused,
    Permanent,
    ReasonCode,
    Transient,
    wire,
)
from graphweft_workers.mcp.access import McpScope
from graphweft_workers.mcp.tools import Tools

WAIT_S = 60.0
REFUSED = InvalidEvent("the gateway answers 403: missing-role; the token lacks the role erase")
MENDED = PartitionRefused("partition 3 takes no events: `graphweft bus mend 3`")
AWAY = BusUnavailable("no leader")

Fails = Callable[[Event], Exception | None]


class Bus:
    """A bus that keeps events, or fails for some, and a responder that finds two memories in two chats."""

    def __init__(self, fails: Fails = lambda _: None) -> None:
        self.fails = fails
        self.reason: ReasonCode | None = None
        self.kept: list[Event] = []

    async def append(self, events: Sequence[Outgoing]) -> list[str]:
        read = [wire.decode(event.fields) for event in events]
        for event in read:
            if (error := self.fails(event)) is not None:
                raise error
        self.kept += read
        return [f"0:{len(self.kept)}"] * len(read)

    async def request(self, request: ContextRequest) -> ContextReply:
        if self.reason is not None:
            return ContextReply(id=request.id, reason=self.reason, detail="the gateway answers 403: missing-role")
        rows = [{"id": name, "chat_id": f"c-{name}", "kind": "memory", "author_name": None} for name in ("a", "b")]
        ids = None if request.search is None else request.search.ids
        found = [row for row in rows if ids is None or row["id"] in ids]
        block = Block(name="search", format="list", value=found, rows=len(found), rule="search", query="search")
        return ContextReply(id=request.id, blocks=(block,))

    async def aclose(self) -> None:
        pass


def always(error: Exception) -> Fails:
    return lambda _: error


Write = Callable[[Any], Any]
WRITES: dict[str, Write] = {
    "remember": lambda memories: memories.remember([{"role": "user", "text": "x"}], wait_s=WAIT_S),
    "update": lambda memories: memories.update("a", text="y", wait_s=WAIT_S),
    "pin": lambda memories: memories.pin("a", wait_s=WAIT_S),
    "forget by id": lambda memories: memories.forget(["a"], wait_s=WAIT_S),
    "forget by tag": lambda memories: memories.forget(tags=["home"], wait_s=WAIT_S),
    "erase a user": lambda memories: memories.erase_user(wait_s=WAIT_S),
}
SURE = {name: write for name, write in WRITES.items() if name.startswith(("forget", "erase"))}
EVERY_WRITE = pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in WRITES.items()])
EVERY_SURE = pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in SURE.items()])


def memories_of(client: Client) -> MemoryClient:
    return MemoryClient(client, app_id="shop", user_id="ada")


@EVERY_WRITE
@pytest.mark.parametrize("error", [REFUSED, MENDED], ids=["event", "partition"])
async def test_a_write_that_is_refused_for_good_raises_the_reason(write: Write, error: Exception) -> None:
    async with Client(transport=Bus(always(error)), clock=VIRTUAL) as client:
        with pytest.raises(type(error), match=str(error)):
            await write(memories_of(client))


@EVERY_WRITE
async def test_a_write_that_the_bus_has_returns(write: Write) -> None:
    async with Client(transport=Bus(), clock=VIRTUAL) as client:
        assert await write(memories_of(client)) is not None


@pytest.mark.parametrize("name", ["remember", "update", "pin"])
async def test_what_is_written_while_the_bus_is_away_waits(name: str) -> None:
    bus = Bus(always(AWAY))
    async with Client(transport=bus, clock=VIRTUAL) as client:
        assert await client.emit(note(), wait_s=0.0) is None
        assert await WRITES[name](memories_of(client)) is None
        bus.fails = lambda _: None
        assert await client.flush(WAIT_S)
        assert len(bus.kept) == 2


@EVERY_SURE
async def test_erasing_without_confirmation_is_no_success(write: Write) -> None:
    bus = Bus(always(AWAY))
    async with Client(transport=bus, clock=VIRTUAL) as client:
        with pytest.raises(BusUnavailable, match="it is not known whether"):
            await write(memories_of(client))
        bus.fails = lambda _: None
        assert await client.flush(WAIT_S), "it is sent as soon as the bus is back"
        assert {event.type for event in bus.kept} <= {"memory.forget", "memory.erase"}


@EVERY_WRITE
async def test_a_write_for_which_the_buffer_has_no_room_raises(write: Write) -> None:
    async with Client(transport=Bus(always(AWAY)), clock=VIRTUAL, buffer=1) as client:
        assert await client.emit(note(), wait_s=0.0) is None
        with pytest.raises(BusUnavailable, match=r"the buffer of 1 events .* is full"):
            await write(memories_of(client))


@pytest.mark.parametrize("name", ["remember", "erase a user"])
async def test_a_closed_client_takes_no_memory(name: str) -> None:
    client = Client(transport=Bus(), clock=VIRTUAL)
    await client.aclose()
    with pytest.raises(BusUnavailable, match="the client is closed"):
        await WRITES[name](memories_of(client))


async def test_forgetting_in_part_says_how_much() -> None:
    bus = Bus(lambda event: REFUSED if event.chatid == "c-b" else None)
    async with Client(transport=bus, clock=VIRTUAL) as client:
        with pytest.raises(InvalidEvent, match="1 of 2 memories is not forgotten: the gateway"):
            await memories_of(client).forget(["a", "b"], wait_s=WAIT_S)
    assert [event.data["memory_ids"] for event in bus.kept] == [["a"]]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("invalid_request", Permanent), ("disabled", Permanent), ("timeout", Transient), ("bus_unavailable", Transient)],
)
async def test_a_listing_that_is_refused_is_told_from_one_without_answer(
    reason: ReasonCode, kind: type[Exception]
) -> None:
    bus = Bus()
    bus.reason = reason
    async with Client(transport=bus, clock=VIRTUAL) as client:
        for read in (memories_of(client).list(), memories_of(client).forget(["a"]), memories_of(client).get("a")):
            with pytest.raises(kind, match=reason):
                await read


def note() -> Event:
    return Event.create("note.made", app_id="shop", chat_id="c1", data={})


# --- without await --------------------------------------------------------------------------------------------------


@pytest.fixture
def synchronous(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Fails], SyncMemoryClient]]:
    made: list[SyncClient] = []

    def make(fails: Fails) -> SyncMemoryClient:
        monkeypatch.setattr("graphweft.transports.registry.make_transport", lambda *_, **__: Bus(fails))
        made.append(SyncClient("redis://nowhere", app_id="shop"))
        return SyncMemoryClient(made[-1], user_id="ada")

    yield make
    for each in made:
        each.close(0.0)


@EVERY_WRITE
def test_the_synchronous_client_raises_the_reason(
    write: Write, synchronous: Callable[[Fails], SyncMemoryClient]
) -> None:
    with pytest.raises(InvalidEvent, match="missing-role"):
        write(synchronous(always(REFUSED)))
    assert write(synchronous(lambda _: None)) is not None


def test_a_closed_synchronous_client_erases_nothing(synchronous: Callable[[Fails], SyncMemoryClient]) -> None:
    memories = synchronous(lambda _: None)
    memories._client.close()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(BusUnavailable, match="the client is closed"):
        memories.erase_user()


# --- over MCP -------------------------------------------------------------------------------------------------------

CALLS: dict[str, dict[str, Any]] = {
    "memory_add": {"text": "x"},
    "memory_update": {"id": "a", "text": "y"},
    "memory_forget": {"ids": ["a"]},
    "episode_add": {"content": "x"},
}
EVERY_CALL = pytest.mark.parametrize("tool", [*CALLS])


def tools_of(client: Client) -> Tools:
    return Tools(client, McpScope(app_id="shop", scope=MemoryScope(user_id="ada"), writes=True))


@EVERY_CALL
@pytest.mark.parametrize("error", [REFUSED, MENDED], ids=["event", "partition"])
async def test_a_tool_says_that_its_write_is_refused_and_not_to_try_later(tool: str, error: Exception) -> None:
    async with Client(transport=Bus(always(error)), clock=VIRTUAL) as client:
        answer = await tools_of(client).call(tool, CALLS[tool])
    assert answer.error
    assert answer.data is None
    assert "refused" in answer.text
    assert "later" not in answer.text
    assert "bus" not in answer.text, "there may be none here, and the operator reads the log"


async def test_memory_forget_says_that_it_is_not_known() -> None:
    async with Client(transport=Bus(always(AWAY)), clock=VIRTUAL) as client:
        assert await client.emit(note(), wait_s=0.0) is None
        answer = await tools_of(client).call("memory_forget", CALLS["memory_forget"])
    assert answer.error
    assert answer.data is None
    assert "not known" in answer.text


@pytest.mark.parametrize("tool", ["memory_update", "memory_forget"])
async def test_a_tool_whose_look_up_is_refused_does_not_say_later(tool: str) -> None:
    bus = Bus()
    bus.reason = "invalid_request"
    async with Client(transport=bus, clock=VIRTUAL) as client:
        answer = await tools_of(client).call(tool, CALLS[tool])
    assert answer.error
    assert "refused" in answer.text
    assert "later" not in answer.text
