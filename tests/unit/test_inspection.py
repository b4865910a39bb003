"""What tools say about events: the rules at a place, why rules do not match, how far workers are, safe text."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphweft_contracts import Event, InvalidSettings, wire
from graphweft_contracts.rules_log import Activation
from graphweft_rules import RuleSet
from graphweft_rules.matching.conditions import conjuncts
from graphweft_rules.matching.explain import unmatched
from graphweft_workers.cli.options import since_time
from graphweft_workers.engine.failures.corrections import CORRECTS
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Checkpoint
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.reports.effects import _state
from graphweft_workers.reports.entries import DecodedEntry, see
from graphweft_workers.reports.lookup import corrects
from graphweft_workers.reports.rules_at import activation_at
from graphweft_workers.rule_sets.active_rules import LoggedRules
from graphweft_workers.support.printable import printable

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("$event.a == 1", ("$event.a == 1",)),
        ("$event.a == '&&' && $event.b > 1&&has($event.c)", ("$event.a == '&&'", "$event.b > 1", "has($event.c)")),
        ("($event.a && $event.b) && $event.c", ("($event.a && $event.b)", "$event.c")),
        ("$event.a && $event.b || $event.c", ("$event.a && $event.b || $event.c",)),
        ("$event.a ? $event.b && true : false", ("$event.a ? $event.b && true : false",)),
        ("$event.a && true // && false", ("$event.a && true // && false",)),
    ],
)
def test_a_condition_is_split_only_where_and_joins_it(text: str, parts: tuple[str, ...]) -> None:
    assert conjuncts(text) == parts


def reasons(condition: str, **data: Any) -> list[str]:
    rules = f"""
version: "1.0"
mutation_rules:
  - name: one
    events: ["a.*"]
    condition: {json.dumps(condition)}
    mutations: [{{id: m, cypher: "MERGE (n:N {{id: 1}})"}}]
"""
    event = Event.create("a.b", app_id="x", chat_id="c", workflow="W", data=data)
    found = RuleSet.of_files({"W/graph_injection.yaml": rules.encode()})
    said = [each.reason for each in unmatched(found, event)]
    matched = found.match_event(event)
    assert bool(said) == (not matched.mutations and not matched.skipped), "each rule is in exactly one list"
    return said


def test_the_operand_that_makes_a_condition_false_is_named_with_its_values() -> None:
    text = "$event.a == 1 && $event.b in ['x', 'y'] && has($event.c)"
    assert reasons(text, a=1, b="x", c=1) == []
    assert reasons(text, a=2, b="x") == ["the condition '$event.a == 1' is false: $event.a is 2"]
    assert reasons(text, a=1, b="z") == ["""the condition "$event.b in ['x', 'y']" is false: $event.b is "z\""""]
    assert reasons(text, a=1, b="x") == ["the condition 'has($event.c)' is false: $event.c is missing"]
    assert reasons("$event.a > 1 || $event.a < 0", a=1) == [
        "the condition '$event.a > 1 || $event.a < 0' is false: $event.a is 1"
    ]
    assert reasons("$event.missing == 1") == []  # a skip
    [long] = reasons("$event.a == 'x'", a="y" * 10_000)
    assert len(long) < 200


def test_the_activation_at_a_place_is_the_one_that_workers_follow() -> None:
    chance = random.Random(3)
    for _ in range(200):
        count = chance.randrange(5)
        activations = [
            Activation(
                number=number + 1,
                scope=chance.choice(["*", "a", "b"]),
                digest=f"{number}",
                time=NOW,
                positions={part: str(10 * number + chance.randrange(9)) for part in range(2) if chance.random() < 0.8},
            )
            for number in range(count)
        ]
        log: Any = None
        active = LoggedRules(log, lambda _: RuleSet({}))
        active.activations = activations
        active.sets = {each.digest: RuleSet({}) for each in activations}
        for partition in range(2):
            cursor = active.cursor(partition, "")
            for offset in range(60):
                app = chance.choice(["a", "b", "c"])
                found = activation_at(activations, app, partition, str(offset))
                expected = active.none if found is None else active.sets[found.digest]
                assert cursor.at(app, str(offset)) is expected


@pytest.mark.parametrize(
    ("offset", "checkpoint", "planned", "parked", "state"),
    [
        ("5", Checkpoint(offset="7"), False, {}, "applied"),
        ("8", Checkpoint(offset="7", plan="p", done=1), True, {}, "in_plan"),
        ("8", Checkpoint(offset="7", plan="p", done=1), False, {}, "waiting"),
        ("5", Checkpoint(), False, {}, "passed"),
        ("5", None, False, {}, "passed"),
        ("8", None, False, {}, "unknown"),
        ("8", Checkpoint(), False, {"b": ParkedApp(at="6")}, "passed"),
        ("8", Checkpoint(), False, {"a": ParkedApp(at="6")}, "waiting"),
        ("6", Checkpoint(), False, {"a": ParkedApp(at="6")}, "passed"),
    ],
)
def test_the_state_follows_the_checkpoint_and_the_position(
    offset: str, checkpoint: Checkpoint | None, planned: bool, parked: Mapping[str, ParkedApp], state: str
) -> None:
    note = PositionNote(parked=parked, done="9" if parked else "")
    assert _state(offset, note.applied("6", ["a"]), checkpoint, ["row"] if planned else []) == state


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (b'{"number": 1}', "activation"), (b'{"number": 2}', "event"), (b'{"number": 0}', "event"),
        (b'{"number": true}', "event"), (b'{"number": "1"}', "event"), (b"[" * 100_000, "event"), (b"", "event"),
    ],
)  # fmt: skip
def test_a_forged_activation_is_what_it_is_to_a_worker(value: bytes, kind: str) -> None:
    event = Event.create("a.b", app_id="x", chat_id="c", id="e")
    entry = Entry(offset="5", fields={**wire.encode(event), wire.ACTIVATION: value}, received=NOW)
    known = [Activation(number=1, scope="*", digest="d", time=NOW, positions={0: "4"})]
    seen = see(0, entry, known)
    assert (seen.kind, seen.note.partition(":")[0]) == (kind, "forged")


def test_an_erased_entry_is_not_one_that_cannot_be_decoded() -> None:
    seen = see(3, Entry(offset="5", fields={}, received=NOW, erased=True), [])
    assert (seen.kind, seen.fault, seen.line().endswith("  3:5  [erased]")) == ("erased", "", True)


@pytest.mark.parametrize(
    ("change", "found"),
    [({}, True), ({"app_id": "other"}, False), ({"corrects": "else"}, False), ({"letter": "0:4:r/m:corrected"}, False)],
    ids=["as the console writes it", "of another app", "of another event", "of another entry"],
)
def test_a_corrected_event_is_found_from_the_old_one(change: dict[str, str], found: bool) -> None:
    def seen(offset: str, event: Event, fields: Mapping[bytes, bytes] | None = None) -> DecodedEntry:
        entry = Entry(offset=offset, fields={**wire.encode(event), **(fields or {})}, received=NOW)
        return see(0, entry, [])

    def made(id: str, app_id: str = "x", **more: str) -> Event:
        return Event.create("a.b", app_id=app_id, chat_id="c", id=id, source="/s").model_copy(update=more)

    old = seen("5", made("old"))
    retry = wire.Retry.of_corrected(0, "5", "r", "m")._replace(**{k: v for k, v in change.items() if k == "letter"})
    body = made("new", change.get("app_id", "x")).model_dump(mode="json", exclude_none=True)
    new = Event.model_validate(body | {CORRECTS: change.get("corrects", "old")})
    assert corrects(seen("9", new, {wire.RETRY: retry.encode()}), old) is found
    assert not corrects(old, old)


def test_text_is_escaped_and_json_stays_the_same() -> None:
    assert printable("plain text, ünï, 漢字, a\u3000b") == "plain text, ünï, 漢字, a\u3000b"
    assert printable("\x1b[2J\x9b\x7f\u202e\n\ud800\U000e0001") == (
        "\\u001b[2J\\u009b\\u007f\\u202e\\n\\ud800\\udb40\\udc01"
    )
    for text in ('\x7f\x9b\u2028\u202e\U000e0001 \\ " \\u1234 漢', "\\\x9b"):
        shown = printable(json.dumps({"k": text}, ensure_ascii=False))
        assert shown.isprintable()
        assert json.loads(shown) == {"k": text}


def test_since_is_a_span_or_a_time() -> None:
    assert since_time(None) is None
    assert since_time("90m", NOW) == NOW - timedelta(minutes=90)
    assert since_time("7d", NOW) == NOW - timedelta(days=7)
    assert since_time("2026-02-01T10:00:00Z") == datetime(2026, 2, 1, 10, tzinfo=UTC)
    assert since_time("2026-02-01") == datetime(2026, 2, 1, tzinfo=UTC)
    for wrong in ("", "soon", "5", "-1d", "999999999d", "\uff11h", "1h\n"):
        with pytest.raises(InvalidSettings, match="invalid --since"):
            since_time(wrong)
