"""How much of a partition each app takes: counting, trimming, joining pages, and the record."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from graphweft_workers.engine.usage.partition_usage import PAGE, AppLoad, GraphMeasure, PartitionUsage, loads_of

HOG, NEIGHBOUR = "hog", "neighbour"


def load(**sizes: int) -> dict[str, AppLoad]:
    return {app_id: AppLoad(events=1, size=size) for app_id, size in sizes.items()}


def test_the_load_of_each_app_is_its_events_and_their_bytes() -> None:
    assert loads_of([(HOG, 6), (NEIGHBOUR, 0), (HOG, 6)]) == {
        HOG: AppLoad(events=2, size=12), NEIGHBOUR: AppLoad(events=1, size=0),
    }  # fmt: skip


def test_a_range_that_was_counted_before_is_not_counted_again() -> None:
    usage = PartitionUsage()
    assert usage.add(load(hog=10), 0, 5, 0.0)
    assert not usage.add(load(hog=10), 0, 5, 0.0)
    assert usage.add(load(hog=1), 5, 6, 0.0)
    assert usage.stored() == {HOG: 11}
    assert usage.end == 6


def test_what_is_trimmed_counts_no_more_and_the_neighbour_stays() -> None:
    usage = PartitionUsage()
    for number in range(4):
        who = load(hog=1_000) if number < 2 else load(neighbour=1_000)
        usage.add(who, number * PAGE, (number + 1) * PAGE, 0.0)
    assert usage.set_trimmed(PAGE)
    assert not usage.set_trimmed(PAGE)
    assert usage.stored() == {HOG: 1_000, NEIGHBOUR: 2_000}
    usage.set_trimmed(2 * PAGE)
    assert usage.stored() == {NEIGHBOUR: 2_000}
    usage.set_trimmed(2 * PAGE + PAGE // 2)
    assert usage.stored() == {NEIGHBOUR: 1_500}, "a page that is trimmed in part counts in part"
    usage.set_trimmed(4 * PAGE)
    assert usage.stored() == {}
    assert not usage.add(load(hog=1), 0, 5, 0.0), "it still knows how far it has counted"
    usage.add(load(hog=5), 4 * PAGE, 4 * PAGE + 1, 0.0)
    assert usage.stored() == {HOG: 5}


def test_pages_stay_few_and_the_sum_exact() -> None:
    source = random.Random(1)
    usage, total = PartitionUsage(), Counter[str]()
    for number in range(3_000):
        app_id = f"app{source.randrange(1_000)}"
        size = source.randrange(10_000)
        total[app_id] += size
        usage.add({app_id: AppLoad(events=1, size=size)}, number * 100, number * 100 + 100, 0.0)
    assert usage.stored() == +total
    assert len(usage.encode(0.0)) < 500_000


def test_after_a_trim_the_sum_is_off_by_a_page_at_most() -> None:
    usage = PartitionUsage()
    for number in range(500):
        usage.add(load(hog=100), number * 100, number * 100 + 100, 0.0)
    usage.set_trimmed(25_000)
    assert usage.stored()[HOG] == pytest.approx(25_000, rel=0.1)


def test_recent_events_are_those_of_the_last_minute() -> None:
    usage = PartitionUsage()
    usage.add(load(hog=1), 0, 1, 1_000.0)
    usage.add(load(hog=1), 1, 2, 1_025.0)
    assert usage.recent(1_030.0) == {HOG: 2}
    assert usage.recent(1_065.0) == {HOG: 1}
    assert usage.recent(1_200.0) == {}


def test_the_record_has_all_counts() -> None:
    usage = PartitionUsage(graphs={HOG: GraphMeasure(names=7, memory=2, time=1)}, without_payload=Counter({HOG: 3}))
    usage.add(load(hog=10, neighbour=20), 5, 9, 1_000.0)
    usage.set_trimmed(3)
    read = PartitionUsage.decode(usage.encode(1_001.0))
    assert read == usage
    assert read.stored() == {HOG: 10, NEIGHBOUR: 20}
    assert not read.add(load(hog=10), 5, 9, 1_002.0)


@pytest.mark.parametrize(
    "record",
    [b"", b"[]", b"1", b"{}", b'{"trimmed": 1}', b'{"end":0,"trimmed":0,"pages":[1],"windows":[],"graphs":{}}'],
)
def test_anything_else_is_refused(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        PartitionUsage.decode(record)
