"""``graphweft.testing.replay``: what rules make of a recorded log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.unit.test_export_file import empty, export

from graphweft.testing import EventReplay, replay
from graphweft_contracts import Event, InvalidEvent, InvalidSettings, wire
from graphweft_contracts.rules_log import Activation
from graphweft_rules import RulesError, RuleSet
from graphweft_rules.matching.pack import LogTime
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.reports.entries import see

ROOT = Path(__file__).parents[2]
AT = datetime(2026, 3, 1, tzinfo=UTC)
RULES = """\
mutation_rules:
  - name: placed
    events: ["order.placed"]
    mutations:
      - id: link
        cypher: "MERGE (o:Order {id: $order}) SET o.by = $customer"
        params: {customer: $event.customer, order: $event.order}
      - id: time
        cypher: "MERGE (o:Order {id: $order}) SET o.at = $at"
        params: {order: $event.order, at: $event.at}
  - name: large
    events: ["order.*"]
    condition: "$event.amount > 100"
    mutations:
      - {id: flag, cypher: "MERGE (o:Large {id: $order})", params: {order: $event.order}}
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return written(tmp_path / "workflows", RULES)


def written(folder: Path, text: str) -> Path:
    (folder / "Support").mkdir(parents=True)
    (folder / "Support/graph_injection.yaml").write_text(text)
    return folder


def order(id: str, workflow: str | None = "Support", type: str = "order.placed", **data: Any) -> Event:
    return Event.create(type, app_id="shop", chat_id="c", id=id, workflow=workflow, time=AT, data=data)


def lines(events: Sequence[Event]) -> bytes:
    return b"".join(wire.encode(event)[wire.DATA] + b"\n" for event in events)


def names(event: EventReplay) -> list[str]:
    return [each.name for each in event.mutations]


def test_each_event_says_what_the_rules_make_of_it_in_log_order(tmp_path: Path, rules: Path) -> None:
    log = tmp_path / "log.jsonl"
    whole = {"customer": "ann", "order": "o1", "at": "noon"}
    log.write_bytes(
        b"\xef\xbb\xbf"
        + lines([order("1", **whole, amount=500), order("2", order="o2", at="noon", amount=1)])
        + b"\n[1]\nno json\n"
        + lines([order("1", **whole), order("5", workflow="Other"), order("6", type="order.paid", amount=3)])
        + lines([order("7", type="memory.add", user_id="u", messages=[{"role": "user", "text": "tea"}])])
        + b'{"id": "8", "source": "/s", "type": "order.placed", "appid": "shop", "chatid": "c"}'
    )
    found = replay(log, rules)
    first, second, third, fourth, copy, other, paid, memory, last = found.events
    assert [each.number for each in found.events] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert (first.id, first.type, names(first)) == ("1", "order.placed", ["placed/link", "placed/time", "large/flag"])
    assert first.mutations[0].params == {"customer": "ann", "order": "o1"}
    assert first.mutations[0].statement == "MERGE (o:Order {id: $order}) SET o.by = $customer"
    assert first.mutations[0].place == f"{rules}/Support/graph_injection.yaml:5:9"
    assert (first.skipped, first.faults, first.reason) == ((), (), "")
    assert names(second) == ["placed/time"]
    assert [(each.name, each.reason) for each in second.skipped] == [
        (
            "placed/link",
            "the parameter 'customer' needs $event.customer, which is missing: publish it, or remove the parameter",
        )
    ]
    assert [each.rule for each in second.unmatched] == ["large"]
    for invalid in (third, fourth):
        assert [fault.reason for fault in invalid.faults] == ["invalid_event"]
        assert (invalid.id, invalid.type, invalid.reason) == (None, None, invalid.faults[0].message)
    assert (copy.copy, copy.mutations, copy.reason) == (True, (), "it is a copy of an earlier event")
    assert [fault.reason for fault in other.faults] == ["no_rules"]
    assert "workflows with rules: Support" in other.reason
    assert (paid.mutations, paid.faults) == ((), ())
    assert "no condition holds" in paid.reason
    assert names(memory) != []
    assert [fault.reason for fault in last.faults] == ["no_rules"]
    assert len(found.mutations) == sum(len(each.mutations) for each in found.events)
    assert (len(found.skipped), [each.reason for each in found.faults]) == (
        1, ["invalid_event", "invalid_event", "no_rules", "no_rules"],
    )  # fmt: skip
    assert json.loads(json.dumps(found.to_dict())) == found.to_dict() | {
        "events": [each.to_dict() for each in found.events]
    }


def test_a_file_and_its_events_give_the_same(tmp_path: Path, rules: Path) -> None:
    events = [order("1", customer="ann", order="o1", at="noon"), order("2", order="o2"), order("3", workflow=None)]
    log = tmp_path / "log.jsonl"
    log.write_bytes(lines(events))
    found = replay(log, rules)
    assert found == replay(events, rules) == replay([each.model_dump() for each in events], rules)
    assert found == replay(events, RuleSet.load(rules))
    assert found.rules == RuleSet.load(rules).digest
    with pytest.raises(FrozenInstanceError):
        found.rules = ""  # type: ignore[misc]


def test_events_without_a_time_replay_alike(rules: Path) -> None:
    event = {"source": "/s", "type": "order.placed", "appid": "shop", "chatid": "c", "workflow": "Support"}
    timed = rules / "Support/graph_injection.yaml"
    timed.write_text(RULES.replace("$event.at", "$event.time"))
    log = [event | {"id": "1", "data": {"order": "a"}}, event | {"id": "2", "data": {"order": "b"}}]
    assert replay(log, rules) == replay(log, rules)


def test_entries_as_the_command_prints_them_replay_as_workers_read_them(tmp_path: Path, rules: Path) -> None:
    given = wire.encode(order("1", order="o1", amount=1))
    retry = wire.Retry("3:1:placed/link", "placed", "link", asks=True)
    activation = Activation(number=1, scope="*", digest="d", positions={3: "4"}, time=AT)
    dropped = wire.DroppedLetter("shop", "placed", "link", ("1",), "skipped")
    fields = [
        given,
        given | {wire.RETRY: retry.encode()},
        {wire.DATA: b"{"},
        {wire.ACTIVATION: b'{"number": 1}'},
        {wire.ACTIVATION: b"forged"},
        {wire.DROPPED: dropped.encode()},
        given,
    ]
    log = tmp_path / "log.jsonl"
    with log.open("w") as file:
        for number, each in enumerate(fields, start=1):
            entry = Entry(offset=str(number), fields=each, received=AT + timedelta(seconds=number))
            file.write(json.dumps(see(3, entry, [activation]).to_dict(), default=str) + "\n")
    first, again, invalid, copy = replay(log, rules).events
    assert [each.number for each in (first, again, invalid, copy)] == [1, 2, 3, 7]
    assert [each.name for each in first.skipped] == ["placed/link", "placed/time"]
    assert [each.name for each in again.skipped] == ["placed/link"]  # only what is retried
    assert [each.reason for each in invalid.faults] == ["invalid_event"]
    assert copy.copy


async def test_an_export_replays_in_the_order_of_its_log(tmp_path: Path, rules: Path) -> None:
    def change(parts: dict[str, Any]) -> None:
        whole = {"customer": "ann", "order": "o1", "at": "noon", "amount": 1}
        fields = [wire.encode(order("1", **whole)), wire.encode(order("2", order="o2", at="noon", amount=1))]
        first, second = (
            Entry(offset=f"{number}-0", fields=each, received=AT) for number, each in zip((1, 3), fields, strict=True)
        )
        parts["entries"] = [[first, empty(2)], [second]]  # one of another app

    file = tmp_path / "shop.export"
    file.write_bytes(export(change))
    found = replay(file, rules)  # within an event loop
    assert [(each.number, each.id, names(each)) for each in found.events] == [
        (1, "1", ["placed/link", "placed/time"]), (2, "2", ["placed/time"]),
    ]  # fmt: skip
    assert [each.name for each in found.skipped] == ["placed/link"]
    file.write_bytes(export(change)[:-2_000])
    with pytest.raises(InvalidSettings, match="the export is damaged"):
        replay(file, rules)


class Exploding(MemoryMutations):
    """A pack with a defect."""

    def match(self, event: Event, logged: LogTime | None = None) -> Any:
        raise ZeroDivisionError


def test_a_rule_that_fails_is_a_fault_and_the_next_event_goes_on(rules: Path) -> None:
    memory = order("1", type="memory.add", user_id="u", messages=[{"role": "user", "text": "tea"}])
    found = replay(
        [memory, order("2", customer="ann", order="o1", at="noon")],
        RuleSet(RuleSet.load(rules).workflows, packs=(Exploding(),)),
    )
    assert [[fault.reason for fault in event.faults] for event in found.events] == [["internal_error"], []]
    assert "ZeroDivisionError" in found.events[0].reason
    assert names(found.events[1]) == ["placed/link", "placed/time"]


def test_a_diff_has_the_events_of_which_rules_make_something_else(tmp_path: Path, rules: Path) -> None:
    log = [order("1", customer="ann", order="o1", amount=50), order("2", customer="bob", order="o2", amount=5)]
    moved = replay(log, written(tmp_path / "moved", "\n\n" + RULES))
    before = replay(log, rules)
    assert before.events[0].skipped != moved.events[0].skipped  # their places
    assert before.diff(moved) == ()
    [changed] = before.diff(replay(log, written(tmp_path / "smaller", RULES.replace("> 100", "> 10"))))
    assert (changed.before.id, names(changed.before), names(changed.after)) == (
        "1", ["placed/link"], ["placed/link", "large/flag"],
    )  # fmt: skip
    with pytest.raises(ValueError, match="longer"):
        before.diff(replay([*log, log[0]], rules))


def test_what_cannot_be_read_says_so(tmp_path: Path, rules: Path) -> None:
    with pytest.raises(InvalidEvent, match=r"none\.jsonl: No such file"):
        replay(tmp_path / "none.jsonl", rules)
    with pytest.raises(InvalidEvent, match="entry 1 is none that `graphweft events tail --json` printed"):
        replay([{"position": "0:1", "kind": "event", "event": {}}], rules)
    with pytest.raises(InvalidSettings, match="does not exist"):
        replay([], tmp_path / "none")
    with pytest.raises(InvalidSettings, match="holds no rules"):
        replay([], tmp_path / "workflows/Support")
    with pytest.raises(RulesError):
        replay([], written(tmp_path / "wrong", "mutation_rules: 3"))


def test_the_example_of_the_guide_prints_what_it_says(tmp_path: Path) -> None:
    guide = (ROOT / "docs/rules.md").read_text("utf-8")
    rules = re.findall(r"```yaml\n(.*?)```", guide.partition("## Test your rules")[2], re.DOTALL)[1]
    blocks = re.findall(r"```(\w*)\n(.*?)```", guide.partition("## Replay recorded events")[2], re.DOTALL)
    (_, log), (_, program), (_, printed) = blocks[:3]
    written(tmp_path / "workflows", rules)
    (tmp_path / "orders.jsonl").write_text(log)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == (printed, "")


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            "sys.modules['yaml'] = None",
            "needs 'yaml', which a base install leaves out: pip install 'graphweft[worker]'",
        ),
        ("sys.version_info = (3, 11, 9)", "needs Python 3.12 or later"),
    ],
)
def test_an_install_without_workers_names_what_is_missing(before: str, said: str) -> None:
    code = f"import sys; {before}\ntry: import graphweft.testing\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert f"graphweft.testing {said}" in done.stdout, done.stderr
