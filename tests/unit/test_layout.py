"""Where the events of an app are, and where they count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from graphweft_contracts import Layout
from graphweft_contracts.channels import partition_of
from graphweft_contracts.layout import ALL_APPS, OwnPartition
from graphweft_contracts.rules_log import restated_scope

SINCE = datetime(2026, 2, 1, 10, tzinfo=UTC)
ACME = OwnPartition(number=4, since=SINCE, before="app")
MOVED = OwnPartition(number=6, since=SINCE, before="chat")
LAYOUT = Layout(partitions=4, own={"acme": ACME, "moved": MOVED}, exceptions={"busy": "chat"})


def test_an_app_with_a_partition_of_its_own_has_its_new_events_there() -> None:
    assert LAYOUT.count == 7
    assert {LAYOUT.partition_of(f"acme/{chat}") for chat in "abcdef"} == {4}
    assert LAYOUT.order_of("acme") == "app"
    assert [*LAYOUT.partitions_of("acme")] == [4, partition_of("acme", 4)]
    assert [*LAYOUT.partitions_of("moved")] == [6, 0, 1, 2, 3]
    assert [*LAYOUT.partitions_of("busy")] == [0, 1, 2, 3]
    for name in map(str, range(50)):
        assert LAYOUT.partition_of(f"{name}/c") == Layout(partitions=4).partition_of(f"{name}/c"), "others stay"
    for scope in (ALL_APPS, restated_scope("acme")):
        assert [*LAYOUT.partitions_of(scope)] == [*range(7)]


def test_what_a_bus_stores_is_read_again() -> None:
    assert LAYOUT.orders() == {
        "*": "app", "busy": "chat", "acme": "own:4:1769940000000:app", "moved": "own:6:1769940000000:chat"
    }  # fmt: skip
    assert Layout.of_stored(4, LAYOUT.orders()) == LAYOUT
    assert Layout.of_stored(4, {}) == Layout(partitions=4, order="chat")


@pytest.mark.parametrize("text", ["own", "own:", "own:4", "own:x:1:app", "own:4:x:app", "own:4:1:app:more", "row"])
def test_an_order_of_a_later_version_is_no_partition(text: str) -> None:
    assert Layout.of_stored(4, {"*": "app", "acme": text}).own == {}


@pytest.mark.parametrize(
    ("partition", "app_id", "later_s", "fault"),
    [
        (4, "acme", 9, ""),
        (4, "globex", -9, "partition 4 takes events of the app 'acme' only, and this one names 'globex'"),
        (4, "moved", -9, "partition 4 takes events of the app 'acme' only"),
        (0, "acme", -1, ""),
        (0, "acme", 0, "the app 'acme' has a partition of its own, 4, since 2026-02-01T10:00:00Z"),
        (5, "acme", 9, "came later to partition 5"),
        (0, "globex", 9, ""),
        (5, "globex", 9, ""),
    ],
)
def test_events_count_where_their_app_has_them(partition: int, app_id: str, later_s: int, fault: str) -> None:
    found = LAYOUT.fault_of(partition, app_id, SINCE + timedelta(seconds=later_s))
    assert fault in found
    assert bool(fault) == bool(found)
