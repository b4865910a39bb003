"""Which of several writes that took long at the same time had the server, and which waited."""

from __future__ import annotations

import pytest

from graphweft_workers.drivers.falkordb.long_writes import LongWrite, waited_s


def write(graph: str, began_s: float, ended_s: float, usual_s: float) -> LongWrite:
    return LongWrite(graph=graph, began_ms=began_s * 1000, ended_ms=ended_s * 1000, usual_s=usual_s)


BUSY = write("busy", 10.0, 10.9, 0.8)
SMALL = write("small", 9.95, 10.95, 0.001)


def test_a_small_write_has_waited_for_a_long_one_and_not_the_other_way_round() -> None:
    others = [write("third", 10.1, 10.95, 0.001), SMALL, BUSY]
    assert waited_s(SMALL, others) == pytest.approx(0.9)
    assert waited_s(BUSY, others) == 0.0


def test_time_that_two_long_writes_share_counts_once() -> None:
    others = [write("x", 9.0, 10.5, 1.0), write("y", 10.0, 10.4, 1.0), write("z", 10.45, 10.9, 1.0)]
    assert waited_s(SMALL, others) == pytest.approx(0.95)


@pytest.mark.parametrize(
    "other",
    [
        write("small", 10.0, 10.9, 0.8),  # of another partition: the app pays for both
        write("other", 10.0, 10.9, 0.0015),  # as short as this one: nobody knows who of the two waited
        write("before", 9.0, 9.9, 0.8),
        write("after", 10.96, 11.9, 0.8),
    ],
)
def test_another_write_that_explains_nothing_excuses_nothing(other: LongWrite) -> None:
    assert waited_s(SMALL, [other]) == 0.0


def test_an_announcement_is_read_as_it_was() -> None:
    announced = write("mozaiks_a:b", 1_700_000_000.0, 1_700_000_001.0, 0.25)
    assert LongWrite.decode(announced.encode()) == announced
    assert announced.encode() != announced.encode()


@pytest.mark.parametrize("text", ["", "a", "1:2:x:id:g", "1:2:3", "nan:2:3:id:g"])
def test_what_is_in_another_form_is_left_out(text: str) -> None:
    assert LongWrite.decode(text) is None
