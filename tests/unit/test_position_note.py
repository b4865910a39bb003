"""How far workers are with some apps, by the note beside a position."""

from __future__ import annotations

from dataclasses import replace

import pytest

from graphweft_workers.engine.apply.older_graph import is_graph_behind
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.position_note import MOST_PARKED, ParkedApp, PositionNote

NOTE = PositionNote(parked={"slow": ParkedApp(at="20"), "slower": ParkedApp(at="10")}, done="40")


@pytest.mark.parametrize(
    ("apps", "reached"),
    [
        (None, "10"),
        (["well"], "40"),
        (["slow"], "20"),
        (["well", "slow"], "20"),
        (["slow", "slower"], "10"),
        ([], "40"),
    ],
)
def test_parked_apps_hold_only_themselves(apps: list[str] | None, reached: str) -> None:
    assert NOTE.applied("10", apps) == reached


def test_without_parked_apps_the_position_is_that_of_all() -> None:
    assert PositionNote(done="9").applied("10", ["any"]) == "10"
    assert PositionNote.decode("no note").applied("10", ["any"]) == "10"


def test_a_position_beyond_what_is_noted_counts() -> None:
    assert NOTE.applied("50", ["slow"]) == "50"


def test_while_events_take_effect_again_only_these_count() -> None:
    note = PositionNote(again="50", again_at="5")
    assert PositionNote.decode(note.encode()) == note
    assert note.applied("50") == "5"
    assert note.applied("3") == "3"
    assert replace(NOTE, again="50", again_at="5").applied("50", ["well"]) == "40"  # one graph was lost alone
    assert replace(NOTE, again="50", again_at="5").applied("50", ["slow"]) == "20"


def test_what_was_reported_stays_so_while_it_is_read_again() -> None:
    before = PositionNote(reported="40", parked={"slow": ParkedApp(at="10", reported="12", why="unavailable", since=7)})
    assert before.resumed("20", {}, "5") == (
        "40",
        {"slow": ParkedApp(at="5", reported="20", why="unavailable", since=7)},
    )
    assert before.resumed("11", {"other": ParkedApp(at="6", reported="9")}, "5") == (
        "40",
        {
            "other": ParkedApp(at="6", reported="40"),
            "slow": ParkedApp(at="5", reported="12", why="unavailable", since=7),
        },
    )
    assert before.resumed("20", {"slow": ParkedApp(at="8")}, "5") == ("40", {"slow": ParkedApp(at="8", reported="20")})
    assert before.resumed("41", {}, "41") == ("41", {})


def test_a_note_names_no_more_parked_apps_than_it_has_room_for() -> None:
    before = PositionNote(reported="40", parked={f"a{n}": ParkedApp(at="10") for n in range(MOST_PARKED)})
    assert before.resumed("20", {"other": ParkedApp(at="6")}, "5") == ("20", {"other": ParkedApp(at="6")})


@pytest.mark.parametrize(
    ("position", "note", "kept", "behind"),
    [
        ("", PositionNote(), None, False),
        ("9", PositionNote(), None, True),
        ("9", PositionNote(), CommittedPosition(offset="9"), False),
        ("9", PositionNote(), CommittedPosition(offset="10"), False),
        ("9", PositionNote(), CommittedPosition(offset="8"), True),
        (
            "9",
            PositionNote(at="8"),
            CommittedPosition(offset="8"),
            False,
        ),  # a record of the bus lies behind the last entry
        (
            "9",
            PositionNote(parked={"slow": ParkedApp(at="9")}, done="20"),
            CommittedPosition(offset="9", note="20"),
            False,
        ),
        (
            "9",
            PositionNote(parked={"slow": ParkedApp(at="9")}, done="20"),
            CommittedPosition(offset="9", note="19"),
            True,
        ),
        ("", PositionNote(parked={"slow": ParkedApp(at="")}, done="20"), None, True),
    ],
)
def test_a_graph_is_behind_if_the_bus_has_seen_more(
    position: str, note: PositionNote, kept: CommittedPosition | None, behind: bool
) -> None:
    assert is_graph_behind(position, note, kept) is behind
