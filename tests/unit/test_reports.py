"""A report is shown as one JSON document, or as its parts in order."""

from __future__ import annotations

import json

import pytest

from graphweft_workers.cli import output
from graphweft_workers.reports.dead_letters import LetterChanges
from graphweft_workers.reports.delivery import DeliveryOutcome, PublishReport, SentEvents
from graphweft_workers.reports.picture import Picture
from graphweft_workers.reports.rebuild import RebuildReport
from graphweft_workers.reports.report import Notice, Part, PlainReport, TextTable

PARTS: tuple[Part, ...] = ("a line", TextTable(("n", "name"), [(1_000, "x")], title="T"), Notice("a hint"))
FAULT = Notice("a fault", is_error=True)


@pytest.fixture(autouse=True)
def consoles() -> None:
    output.stdout.cache_clear()
    output.stderr.cache_clear()


def test_a_report_for_people_is_its_parts_and_notices_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(PlainReport({"n": 1}, [*PARTS, FAULT]), json=False)
    printed = capsys.readouterr()
    assert printed.out.startswith("a line\n")
    assert "1,000" in printed.out
    assert printed.err == "a hint\nerror: a fault\n"


def test_a_report_for_programs_is_one_document_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(PlainReport({"n": 1}, PARTS), json=True)
    printed = capsys.readouterr()
    assert (json.loads(printed.out), printed.err) == ({"n": 1}, "")


@pytest.mark.parametrize(
    ("kept", "unknown", "code"), [((), (), None), ((("a", "why"),), (), 1), ((("a", "why"),), ("z",), 2)]
)
def test_letters_that_stay_and_unknown_ids_decide_the_exit_code(
    kept: tuple[tuple[str, str], ...], unknown: tuple[str, ...], code: int | None
) -> None:
    report = LetterChanges(what="dropped", done=2, kept=kept, unknown=unknown)
    assert report.exit_code == code
    assert report.to_dict() == {
        "dropped": 2, "left": len(kept), "kept": [{"id": name, "why": why} for name, why in kept],
        "unknown": list(unknown),
    }  # fmt: skip
    lines = [*report.parts()]
    assert str(lines[0]).startswith("2 letters are dropped")
    assert len(lines) == 1 + len(kept) + len(unknown)


def test_events_that_were_sent_are_all_known_to_be_applied_or_the_exit_code_is_1() -> None:
    applied = DeliveryOutcome(applied=2, skipped=0, dead_lettered=0)
    skipped = DeliveryOutcome(applied=1, skipped=1, dead_lettered=0)
    cases = {
        None: PublishReport(sent=SentEvents(events=2), outcome=applied, refused=0),
        1: PublishReport(sent=SentEvents(events=2), outcome=skipped, refused=0),
        2: PublishReport(sent=SentEvents(events=2), outcome=skipped, refused=1),
    }
    assert {report.exit_code: report for report in cases.values()} == cases
    assert PublishReport(sent=SentEvents(events=2, without_outcome=True), outcome=None).exit_code == 1
    assert "refused" not in PublishReport(sent=SentEvents(events=2), outcome=None).to_dict()


def test_skipped_events_are_not_said_to_be_no_dead_letters() -> None:
    counts, next_step = map(str, DeliveryOutcome(applied=1, skipped=1, dead_lettered=0).parts())
    assert counts == "1 applied, 1 skipped, 0 failed"
    assert next_step.startswith("events that were skipped or failed are dead letters (graphweft dlq list); after a fix")


def test_one_repeated_event_is_told_in_the_singular() -> None:
    _, repeated = map(str, DeliveryOutcome(applied=0, skipped=0, dead_lettered=0, repeated=1).parts())
    assert repeated.startswith("1 was on the bus before and has no effect again: ")


def test_the_first_nodes_of_a_picture_keep_the_relationships_between_them() -> None:
    found = Picture(redacts=False)
    for number in range(3):
        found.add_node(number, ["Note"], str(number))
    for number, (start, end) in enumerate([(0, 1), (1, 2)]):
        found.add_relationship(number, "BEFORE", start, end)
    first = found.first(2).to_dict()
    assert [each["id"] for each in first["nodes"]] == [0, 1]
    assert [(each["start"], each["end"]) for each in first["relationships"]] == [(0, 1)]


def test_a_rebuild_that_could_not_compare_says_why_and_nothing_else() -> None:
    report = RebuildReport(app="a", graph="a.rebuilt", verify=True, parked_for={"slow_writes"})
    assert report.failed
    assert list(report.parts()) == []
    [said] = report.warnings()
    assert "not compared" in said
    assert "(slow_writes)" in said
