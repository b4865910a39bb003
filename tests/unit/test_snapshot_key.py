"""The key of a snapshot changes with all that a graph follows from, and its file says when it is not whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from graphweft_contracts import DeadLetter
from graphweft_contracts.rules_log import Activation, restated_scope
from graphweft_rules.cypher.indexes import SearchIndex
from graphweft_workers.engine.log.effect_ledger import EffectLedger
from graphweft_workers.engine.log.read import letter_for
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import Checkpoint, Progress
from graphweft_workers.replay.snapshot_file import InvalidSnapshot, Snapshot, SnapshotWriter, read_snapshot
from graphweft_workers.replay.snapshot_key import LogHash, Scan, snapshot_key

T0 = datetime(2026, 2, 1, tzinfo=UTC)
FIRST = Entry(offset="1", fields={b"a": b"1", b"b": b"2"}, received=T0)


def hashed(*entries: Entry) -> bytes:
    found = LogHash()
    for entry in entries:
        found.add(entry)
    return found.value


def test_the_hash_of_a_log_changes_with_each_part_of_an_entry() -> None:
    changed = [
        replace(FIRST, offset="2"),
        replace(FIRST, received=T0 + timedelta(milliseconds=1)),
        replace(FIRST, fields={b"a": b"1"}),
        replace(FIRST, fields={b"a": b"12", b"b": b""}),
        replace(FIRST, fields={b"a": b"1", b"c": b"2"}),
    ]
    assert len({hashed(), hashed(FIRST), hashed(FIRST, FIRST), *(hashed(each) for each in changed)}) == 8
    assert hashed(FIRST) == hashed(replace(FIRST, fields={b"b": b"2", b"a": b"1"}))


def letter(offset: str, app: str = "shop") -> DeadLetter:
    entry = replace(FIRST, offset=offset)
    return letter_for(0, entry, "timeout", "why", rule="r", mutation="m").model_copy(update={"app_id": app})


def key(
    *,
    letters: tuple[DeadLetter, ...] = (),
    activations: tuple[Activation, ...] = (),
    app: str = "shop",
    before: str = "",
    code: str = "c",
    offset: str = "5",
) -> str:
    scan = Scan(0)
    scan.passed_over = EffectLedger(0)
    for each in letters:
        scan.passed_over.add_letter(each)
    return snapshot_key(scan, app, offset, hashed(FIRST), activations, before=before, code=code)


def activation(number: int, offset: str, scope: str = "*", digest: str = "d") -> Activation:
    return Activation(number=number, scope=scope, digest=digest, time=T0, positions={0: offset})


def test_the_key_has_what_lies_up_to_the_place_and_nothing_else() -> None:
    rules = (activation(1, "1"),)
    same = [
        key(activations=rules),
        key(activations=(*rules, activation(2, "6"))),
        key(activations=(*rules, activation(2, "3", scope="bank"))),
        key(activations=(*rules, activation(2, "9", scope=restated_scope("bank")))),
        key(activations=rules, letters=(letter("6"),)),
        key(activations=rules, letters=(letter("3", app="bank"),)),
    ]
    other = [
        key(),
        key(activations=(activation(1, "1", digest="e"),)),
        key(activations=(activation(1, "9"),)),  # it applies before its place, for it is the first
        key(activations=(*rules, activation(2, "5"))),
        key(activations=rules, letters=(letter("5"),)),
        key(activations=(*rules, activation(2, "9", scope=restated_scope("shop")))),  # it is about what lies before
        key(activations=rules, app="bank"),
        key(activations=rules, before="b"),
        key(activations=rules, code="d"),
        key(activations=rules, offset="6"),
    ]
    assert len(set(same)) == 1
    assert len({*same, *other}) == 1 + len(other)


def test_a_file_gives_back_what_it_was_given_or_says_why_not() -> None:
    snapshot = Snapshot(
        app_id="shop",
        key="k",
        events=3,
        progress={7: Progress(checkpoint=Checkpoint(offset="1-0", plan="generation:x", done=2), note="n\n\u2028")},
        keys=frozenset({("A", "id")}),
        indexes=[SearchIndex(kind="vector", label="A", properties=("v",), name="n", dimensions=3)],
    )
    lines = [b'["node",%d]' % number for number in range(200_000)]
    writer = SnapshotWriter()
    for line in lines:
        writer.add(line)
    data = writer.finish(snapshot)
    found, read = read_snapshot(data)
    assert (found, list(read)) == (snapshot, lines)
    for wrong in (b"", data[:-1], data[:70], data + b"x", b"0" + data[1:], data[: len(data) // 2]):
        with pytest.raises(InvalidSnapshot):
            read_snapshot(wrong)


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return a snapshot whose header ``change`` has changed, with the right hash."""
    start, _, packed = data.partition(b"\n")[2].partition(b"\n")
    header = json.loads(start)
    change(header)
    body = json.dumps(header).encode() + b"\n" + packed
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(lines=2),
        lambda header: header.update(lines=4),
        lambda header: header.update(lines=10**9),
        lambda header: header.update(lines="x"),
        lambda header: header.update(progress=[]),
        lambda header: header.update(progress={"x": {}}),
        lambda header: header.update(progress={"1": {"checkpoint": {"offset": "1-0", "evil": 1}, "note": ""}}),
        lambda header: header.update(keys=[["A", f"p{number}"] for number in range(300)]),
        lambda header: header.update(keys=[["A"]]),
        lambda header: header.update(indexes=[{"kind": "vector"}]),
        lambda header: header.update(indexes=header["indexes"] * 2_000),
        lambda header: header.pop("events"),
    ],
)
def test_a_header_that_is_not_that_of_the_graph_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    snapshot = Snapshot(
        app_id="shop", key="k", events=3, progress={}, keys=frozenset(),
        indexes=[SearchIndex(kind="vector", label="A", properties=("v",), name="n", dimensions=3)],
    )  # fmt: skip
    writer = SnapshotWriter()
    for number in range(3):
        writer.add(b'["node",%d]' % number)
    data = writer.finish(snapshot)
    assert len(list(read_snapshot(with_header(data, lambda _: None))[1])) == 3
    with pytest.raises(InvalidSnapshot):
        list(read_snapshot(with_header(data, change))[1])
