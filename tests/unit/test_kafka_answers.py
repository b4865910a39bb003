"""What a broker does not say is an error, never an empty partition or a partition without an owner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.errors import GroupLoadInProgressError, KafkaError

from graphweft_contracts import channels
from graphweft_workers.drivers.kafka.group import owners_in
from graphweft_workers.drivers.kafka.reader import known_bounds

ONE, OTHER = (TopicPartition(channels.EVENTS_TOPIC, number) for number in range(2))


def group(*members: tuple[str, str, tuple[int, ...]], code: int = 0) -> Mapping[str, Any]:
    """Return what a broker says about a group; ``members`` have a name, a topic and partitions."""
    told: list[dict[str, Any]] = []
    for name, topic, numbers in members:
        assigned = ConsumerProtocol.ASSIGNMENT(0, [(topic, [*numbers])], b"").encode() if numbers else b""
        told.append({"client_id": name, "member_assignment": assigned})
    return {"error_code": code, "group": channels.ARCHIVE_GROUP, "members": told}


def test_each_partition_of_the_events_has_the_owner_that_the_group_names() -> None:
    members = (("a", channels.EVENTS_TOPIC, (0, 2)), ("b", channels.EVENTS_TOPIC, ()), ("c", "other.topic", (1,)))
    assert owners_in([group(*members)]) == {0: "a", 2: "a"}
    assert owners_in([group()]) == {}


def test_a_group_of_which_a_broker_says_nothing_is_not_an_empty_one() -> None:
    with pytest.raises(GroupLoadInProgressError, match=channels.ARCHIVE_GROUP):
        owners_in([group(code=GroupLoadInProgressError.errno)])


def test_an_empty_partition_has_bounds() -> None:
    assert known_bounds([ONE, OTHER], {ONE: 0, OTHER: 7}, {ONE: 0, OTHER: 9}) == {ONE: (0, 0), OTHER: (7, 9)}


@pytest.mark.parametrize("told", [{ONE: 3}, {ONE: 3, OTHER: -1}, {ONE: 3, OTHER: None}])
def test_a_partition_of_which_a_broker_says_nothing_is_not_an_empty_one(told: dict[TopicPartition, int | None]) -> None:
    known = {ONE: 0, OTHER: 0}
    for first, end in ((told, {ONE: 9, OTHER: 9}), (known, told)):
        with pytest.raises(KafkaError, match=r"partition 1 of graphweft\.events"):
            known_bounds([ONE, OTHER], first, end)
