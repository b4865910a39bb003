"""How far workers are with some apps, by the note beside a position."""

from __future__ import annotations

import pytest

from graphweft_workers.engine.position_note import Parked, PositionNote

NOTE = PositionNote(parked={"slow": Parked(at="20"), "slower": Parked(at="10")}, done="40")


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
