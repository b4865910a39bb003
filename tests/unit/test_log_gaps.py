"""What the log lacks is cut by what somebody has accepted as lost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from graphweft_contracts import InvalidSettings
from graphweft_workers.archive.log_gaps import Acceptance, LogGap, check_accepted, gaps_of_archive, split_by, without
from graphweft_workers.archive.reader import Gap

ANN = Acceptance(time=datetime(2026, 11, 29, 12, tzinfo=UTC), by="ann")


def gap(first: int, last: int, accepted: Acceptance | None = None) -> LogGap:
    return LogGap(partition=0, first=first, last=last, accepted=accepted)


@pytest.mark.parametrize(
    ("accepted", "parts"),
    [
        ([], [(10, 20, False)]),
        ([(10, 20)], [(10, 20, True)]),
        ([(1, 99)], [(10, 20, True)]),
        ([(1, 9), (21, 30)], [(10, 20, False)]),
        ([(1, 12)], [(10, 12, True), (13, 20, False)]),
        ([(15, 30)], [(10, 14, False), (15, 20, True)]),
        ([(12, 13), (15, 15)], [(10, 11, False), (12, 13, True), (14, 14, False), (15, 15, True), (16, 20, False)]),
        ([(5, 14), (12, 20)], [(10, 14, True), (15, 20, True)]),
    ],
)
def test_a_gap_is_cut_where_a_consent_ends(accepted: list[tuple[int, int]], parts: list[tuple[int, int, bool]]) -> None:
    found = split_by([gap(*each, ANN) for each in accepted], [gap(10, 20)])
    assert [(each.first, each.last, each.accepted is not None) for each in found] == parts


def test_the_bus_fills_a_gap_of_the_archive_behind_what_was_trimmed() -> None:
    gaps = [Gap(first=3, last=5), Gap(first=8, last=12), Gap(first=20, last=21)]
    assert gaps_of_archive(0, gaps, 9) == [gap(3, 5), gap(8, 9)]


def test_a_refusal_names_an_archive_to_set_only_where_none_is_set() -> None:
    gaps = [gap(402, 549, ANN), gap(550, 550), LogGap(partition=1, first=1, last=1)]
    with pytest.raises(
        InvalidSettings, match=r"partition 0 of the log lacks 1 entry, .* \(number 550\), so it stops"
    ) as archived:
        check_accepted(gaps, "it stops", archived=True)
    assert ("--accept-lost" in str(archived.value), "GRAPHWEFT_ARCHIVE_URL" in str(archived.value)) == (True, False)
    with pytest.raises(InvalidSettings, match="GRAPHWEFT_ARCHIVE_URL"):
        check_accepted(gaps, "it stops", archived=False)
    check_accepted(gaps[:1], "it stops", archived=True)


def test_a_result_says_what_it_is_without_and_who_accepted_that() -> None:
    assert without([]) == ""
    said = "without 149 entries of partition 0 (402 to 550), accepted as lost by ann on 2026-11-29. It is not known"
    assert without([gap(402, 550, ANN)]).startswith(said)
