"""A context request on Kafka goes to a second responder if nothing is heard of the first, and only then."""

# A producer that keeps what it is given shows which requests are sent.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from tests.services.virtual_time import VIRTUAL, VirtualClock, run

from graphweft.transports.kafka.connection import servers
from graphweft.transports.kafka.context import SENT_AGAIN, KafkaContext, _Pending
from graphweft.transports.kafka.request_partitions import RequestPartitions
from graphweft.transports.kafka.timing import KAFKA_TIMING
from graphweft_contracts import BusUnavailable, ContextRequest, channels
from graphweft_workers.drivers.kafka.held_requests import HeldRequests
from graphweft_workers.drivers.kafka.requests import KafkaRequestQueue
from graphweft_workers.drivers.kafka.timing import KAFKA_BUS_TIMING
from graphweft_workers.ports.request_queue import MAX_REPLY_BYTES, PendingRequest

TOPIC = channels.CONTEXT_REQUESTS_TOPIC
CHANNEL = channels.context_replies_partition(1)


class Members:
    """What aiokafka's assignor reads of members."""

    subscription = (TOPIC,)


class Cluster:
    """What aiokafka's assignor reads of a cluster."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def partitions_for_topic(self, _: str) -> set[int]:
        return self._partitions


@pytest.mark.parametrize("members", [2, 3, 4, 5, 7])
@pytest.mark.parametrize("count", [2, 3, 4, 5, 8, 16])
def test_the_second_partition_has_another_responder(members: int, count: int) -> None:
    cluster: Any = Cluster(count)
    group: dict[str, Any] = {f"m{number}": Members() for number in range(members)}
    assigned = RoundRobinPartitionAssignor.assign(cluster, group)
    owners = {
        partition: name
        for name, assignment in assigned.items()
        for _, partitions in assignment.assignment
        for partition in partitions
    }
    assert len(owners) == count
    for first in range(count):
        second = RequestPartitions(count, clock=VirtualClock()).second(first)
        assert second is not None
        assert owners[second] != owners[first]


def test_requests_take_turns_and_pass_silent_partitions_for_a_while() -> None:
    clock = VirtualClock()
    partitions = RequestPartitions(4, clock=clock)
    assert sorted(partitions.first() for _ in range(4)) == [0, 1, 2, 3]
    assert partitions.second(2) == 3
    assert {partitions.first() for _ in range(12)} == {0, 1, 3}
    clock.advance(KAFKA_TIMING.silent_s)
    assert {partitions.first() for _ in range(12)} == {0, 1, 2, 3}
    partitions.second(2)
    partitions.heard(2)
    assert {partitions.first() for _ in range(12)} == {0, 1, 2, 3}


def test_a_request_whose_second_partition_is_silent_goes_to_another_one() -> None:
    partitions = RequestPartitions(4, clock=VirtualClock())
    assert partitions.second(1) == 0  # of a responder that answered late once
    assert partitions.second(0) in (2, 3)


def test_where_all_are_silent_no_request_is_doubled() -> None:
    partitions = RequestPartitions(4, clock=VirtualClock())
    first, second, third, *more = [partitions.second(first) for first in (0, 1, 2, 3, 0)]
    assert (first, second in (2, 3), third, more) == (1, True, 3, [None, None])
    assert {partitions.first() for _ in range(8)} == {0, 1, 2, 3}
    assert RequestPartitions(1, clock=VirtualClock()).second(0) is None


def pending(request_id: str, *, token: str = "0:1", app_id: str = "shop", reply_to: str = CHANNEL) -> PendingRequest:
    body = ContextRequest(
        id=request_id, app_id=app_id, workflow="Shop", agent="One", chat_id="c", deadline_ms=1, reply_to=reply_to
    ).model_dump_json()
    return PendingRequest(token=token, body=body.encode())


def test_a_responder_names_the_requests_that_it_has() -> None:
    held = HeldRequests()
    app_channel = channels.context_replies_partition(0, channels.context_replies_topic("shop"))
    assert (bool(held), dict(held.notes())) == (False, {})
    assert held.add(pending("a"))
    assert held.add(pending("b", token="0:2"))
    assert held.add(pending("c", token="0:3", reply_to=app_channel))
    assert held.add(PendingRequest(token="0:4", body=b"no request"))
    assert dict(held.notes()) == {CHANNEL: b"\na\nb", app_channel: b"\nc"}
    for token in ("0:1", "0:3", "0:4", "0:4"):
        held.remove(token)
    assert (bool(held), dict(held.notes())) == (True, {CHANNEL: b"\nb"})


def test_a_request_names_no_channel_of_another_app() -> None:
    held = HeldRequests()
    other = channels.context_replies_partition(0, channels.context_replies_topic("bank"))
    assert held.add(pending("a", reply_to=other))
    assert dict(held.notes()) == {}


@pytest.mark.parametrize("request_id", ["x" * 65, "\U0001f600", "a\nb", "a b"])
def test_a_note_has_short_plain_ids_only(request_id: str) -> None:
    held = HeldRequests()
    assert held.add(pending(request_id))
    assert held.add(pending("b", token="0:2"))
    assert dict(held.notes()) == {CHANNEL: b"\nb"}


def test_an_app_with_very_many_requests_leaves_room_for_others_in_a_small_note() -> None:
    held = HeldRequests()
    for number in range(3_000):
        assert held.add(pending(f"{number:064}", token=f"0:{number}"))
    assert held.add(pending("other", token="1:1", app_id="bank"))
    note = held.notes()[CHANNEL]
    assert len(note) < 20_000
    assert note.startswith(b"\n%064d\n%064d" % (0, 1))
    assert note.endswith(b"\nother")


def test_the_same_app_has_no_more_room_on_several_channels() -> None:
    held = HeldRequests()
    channels_ = [channels.context_replies_partition(number) for number in range(4)]
    for number in range(3_000):
        assert held.add(pending(f"{number:064}", token=f"0:{number}", reply_to=channels_[number % 4]))
    notes = held.notes()
    assert notes.keys() == set(channels_)
    assert sum(map(len, notes.values())) < 20_000


def test_requests_of_very_many_apps_fit_a_record() -> None:
    held = HeldRequests()
    for number in range(10_000):
        assert held.add(pending(f"{number:064}", token=f"0:{number}", app_id=f"app{number}"))
    assert len(held.notes()[CHANNEL]) < MAX_REPLY_BYTES // 2


class NoteProducer:
    """Keeps the partitions that records of replies are sent to; refuses those for partition 0."""

    def __init__(self) -> None:
        self.sent: list[int] = []

    async def partitions_for(self, _: str) -> set[int]:
        return {0, 1}

    async def send(self, _: str, __: bytes, *, partition: int) -> asyncio.Future[Any]:
        if partition == 0:
            raise KafkaError("too large")
        self.sent.append(partition)
        return asyncio.get_running_loop().create_future()


def test_a_note_that_is_refused_keeps_no_other_one_back() -> None:
    async def main() -> None:
        queue, producer = KafkaRequestQueue("kafka://127.0.0.1:1", name="a", clock=VIRTUAL), NoteProducer()
        queue._producer = producer
        queue._held.add(pending("a", reply_to=channels.context_replies_partition(0)))
        queue._held.add(pending("b", token="0:2"))
        queue._holds.set()
        noting = asyncio.create_task(queue._note_held())
        await asyncio.sleep(3.5 * KAFKA_BUS_TIMING.request_note_s)
        noting.cancel()
        assert producer.sent == [1, 1, 1]

    run(main())


def test_a_copy_of_a_request_is_known_also_after_its_reply() -> None:
    held = HeldRequests()
    assert held.add(pending("a"))
    assert not held.add(pending("a", token="1:1"))
    held.remove("0:1")
    assert not held.add(pending("a", token="1:2"))
    assert not held


class Producer:
    """Keeps what is sent; ``errors`` are raised first."""

    def __init__(self, *errors: Exception) -> None:
        self.sent: list[tuple[int, Any]] = []
        self._errors = list(errors)

    async def send(self, topic: str, message: bytes, *, partition: int, headers: Any) -> asyncio.Future[Any]:
        assert (topic, message) == (TOPIC, b"m")
        self.sent.append((partition, headers))
        if len(self.sent) > 1 and self._errors:
            raise self._errors.pop()
        return asyncio.get_running_loop().create_future()


def context() -> KafkaContext:
    made = KafkaContext(servers("kafka://127.0.0.1:1"), partitions=4, clock=VIRTUAL)
    made._partitions = RequestPartitions(4, clock=VIRTUAL)
    return made


async def answered(made: KafkaContext, producer: Producer, *, after_s: float, note_s: float = 0.0) -> bytes:
    """Return the reply to a request, which comes after a while; each ``note_s`` the responder says that it has it."""
    request_id = uuid4().hex.encode()
    waiting = made._pending[request_id] = _Pending()

    class Record:
        value = b"\n" + request_id + b"\nother"

    async def respond() -> None:
        until = VIRTUAL.monotonic() + after_s
        while note_s and VIRTUAL.monotonic() + note_s < until:
            await asyncio.sleep(note_s)
            made._deliver(Record)
        await asyncio.sleep(until - VIRTUAL.monotonic())
        Record.value = request_id + b"\nreply"
        made._deliver(Record)

    responding = asyncio.create_task(respond())
    outcome = await made._answer(producer, b"m", waiting, 0.1)
    await responding
    assert not isinstance(outcome, BusUnavailable)
    return outcome


def test_a_quick_or_a_slow_responder_gets_a_request_alone() -> None:
    async def main() -> None:
        for how in ({"after_s": 0.05}, {"after_s": 30.0, "note_s": 0.05}):
            producer = Producer()
            assert await answered(context(), producer, **how) == b"reply"
            assert len(producer.sent) == 1

    run(main())


@pytest.mark.parametrize("errors", [(), (ConnectionError("the broker went away"),)])
def test_a_silent_responder_s_request_goes_to_another_one_once(errors: tuple[Exception, ...]) -> None:
    async def main() -> None:
        made, producer = context(), Producer(*errors)
        assert await answered(made, producer, after_s=2.5) == b"reply"
        (first, headers), (second, again) = producer.sent
        assert (headers, again, second) == (None, [SENT_AGAIN], first ^ 1)

    run(main())


def test_a_responder_that_falls_silent_while_it_works_is_noticed() -> None:
    async def main() -> None:
        made, producer = context(), Producer()
        request_id = b"a"
        waiting = made._pending[request_id] = _Pending()
        asking = asyncio.create_task(made._answer(producer, b"m", waiting, 0.1))
        for _ in range(10):
            await asyncio.sleep(0.05)
            waiting.is_alive = True
        assert len(producer.sent) == 1
        await asyncio.sleep(0.21)
        assert len(producer.sent) == 2
        waiting.answer.set_result(b"reply")
        assert await asking == b"reply"

    run(main())
