"""The note of a plan: short where nothing is missing, and read as it was written, also by earlier versions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphweft_contracts import GraphUnavailable
from graphweft_workers.engine.plan.plan_note import PlanNote, compact

HEADS = st.sampled_from(["", "17-", "18-", "00", "a"])
OFFSETS = st.lists(st.builds("{}{}".format, HEADS, st.one_of(st.integers(0, 12), st.just(""))), unique=True)
STEPS = st.lists(st.tuples(st.just("rule"), st.sampled_from("ab"), st.lists(st.integers(0, 9), min_size=1)))


@given(offsets=OFFSETS, steps=STEPS)
def test_a_note_is_read_as_it_was_written(offsets: list[str], steps: list[tuple[str, str, list[int]]]) -> None:
    note = PlanNote(end="99", events=offsets, steps=steps, left_out={"offsets": ["1"]}, rules="d")
    assert PlanNote.decode(note.encode()) == note


@pytest.mark.parametrize("head", ["", "1764050000000-"])
def test_events_without_a_gap_take_no_more_room_than_few(head: str) -> None:
    events = [f"{head}{number}" for number in range(1, 1_001)]
    steps = [("rule", "one", list(range(1_000))), ("rule", "two", list(range(1_000)))]
    note = PlanNote(end=events[-1], events=events, steps=steps)
    assert len(note.encode()) < 250
    assert PlanNote.decode(note.encode()).events == events


def test_a_note_of_the_format_before_is_read() -> None:
    body = {"format": 1, "end": "3-0", "events": ["1-0", "3-0"], "steps": [["r", "m", [1, 0]]], "left_out": None}
    note = PlanNote.decode(json.dumps(body))
    assert note == PlanNote(end="3-0", events=["1-0", "3-0"], steps=[["r", "m", [1, 0]]])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "said"), [('{"format": 3}', "another version"), ("no JSON", "overwritten")], ids=["newer", "overwritten"]
)
def test_a_note_that_is_not_known_is_not_guessed_at(text: str, said: str) -> None:
    with pytest.raises(GraphUnavailable, match=said):
        PlanNote.decode(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_compact_json_means_what_was_written(value: object) -> None:
    assert json.loads(compact(value)) == value


def test_half_of_a_surrogate_pair_can_be_written() -> None:
    text = compact({"message": "\ud800"})
    assert json.loads(text) == {"message": "\ud800"}
    text.encode()
