"""Which events are behind an example of `graphweft diff`: each event once for each of its mutations."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.services.rules import rules_of_parts

from graphweft_contracts import Event, wire
from graphweft_rules import RuleSet
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import LoggedEvent, read_range
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.replay.causes import Causes
from graphweft_workers.replay.graph_diff import Example, NodeName
from graphweft_workers.reports.diff import text_of_cause
from graphweft_workers.rule_sets.active_rules import FixedRules

NOW = datetime(2026, 2, 1, tzinfo=UTC)
ORDER = Example(
    kind="node",
    how="changed",
    name="Order",
    ends=(NodeName(id="o1", label="Order", key={"id": "o1"}),),
    before={},
    after={},
)
SET = "MERGE (o:Order {id: $s}) SET o.%s = $v"


def rules(folder: Path, name: str, **parts: str) -> RuleSet:
    (folder / name).mkdir()
    return rules_of_parts(folder / name, parts)


def matched(rules: RuleSet, *events: Event) -> list[LoggedEvent]:
    entries = [
        Entry(offset=f"{number}-0", fields=wire.encode(event), received=NOW) for number, event in enumerate(events, 1)
    ]
    return list(read_range(0, entries, FixedRules(rules), RecentEvents()).apps.get("app", ()))


def placed(id: str = "e1", chat: str = "c1", value: int = 1) -> Event:
    data = {"s": "o1", "v": value}
    return Event.create("order.placed", app_id="app", chat_id=chat, workflow="W", id=id, source="/test", data=data)


def test_an_event_has_one_line_for_each_mutation(tmp_path: Path) -> None:
    old = matched(rules(tmp_path, "old", kept=SET % "a", changed=SET % "b", gone=SET % "c"), placed())
    new = matched(rules(tmp_path, "new", kept=SET % "a", changed=SET % "d", added=SET % "e"), placed())
    causes = Causes([ORDER])
    causes.see(0, old, new)
    assert [text_of_cause(cause) for cause in causes.found[0]] == [
        "event order.placed e1 of /test at 0:1-0: r/changed differs",
        "event order.placed e1 of /test at 0:1-0: r/gone as lived",
        "event order.placed e1 of /test at 0:1-0: r/added by the rules",
    ]


def test_an_event_at_two_positions_has_one_line(tmp_path: Path) -> None:
    lived, given = rules(tmp_path, "old", count=SET % "a"), rules(tmp_path, "new", count=SET % "b")
    causes = Causes([ORDER])
    causes.see(0, [], matched(given, placed()))
    causes.see(1, matched(lived, placed(chat="c2")), matched(given, placed(chat="c2")))
    assert [text_of_cause(cause) for cause in causes.found[0]] == [
        "event order.placed e1 of /test at 0:1-0 and 1:1-0: r/count differs"
    ]


def test_an_example_has_five_events_though_each_differs(tmp_path: Path) -> None:
    lived, given = rules(tmp_path, "old", count=SET % "a"), rules(tmp_path, "new", count=SET % "b")
    events = [placed(f"e{number}") for number in range(9)]
    causes = Causes([ORDER])
    causes.see(0, matched(lived, *events), matched(given, *events))
    assert [cause.id for cause in causes.found[0]] == ["e0", "e1", "e2", "e3", "e4"]
