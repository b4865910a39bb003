"""Reading in turns: the same result, and bounded turns."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from graphweft_contracts import Event, wire
from graphweft_rules import RuleSet
from graphweft_workers.active_rules import FixedRules
from graphweft_workers.engine import turns
from graphweft_workers.engine.duplicates import RecentEvents
from graphweft_workers.engine.read import read_range
from graphweft_workers.features.memory.mutations import MemoryMutations
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.pages import last_page, size_of

T0 = datetime(2026, 2, 1, tzinfo=UTC)


def rules(folder: Path) -> RuleSet:
    (folder / "Shop").mkdir()
    (folder / "Shop/graph_injection.yaml").write_text(
        "mutation_rules:\n- name: r\n  events: [order.paid]\n  mutations:\n"
        "  - {id: m, cypher: 'CREATE (:Order {id: $id})', params: {id: $event.nr}}\n"
    )
    return RuleSet.load(folder, [MemoryMutations()])


def entry(number: int, fields: dict[bytes, bytes]) -> Entry:
    return Entry(offset=f"{number}-0", fields=fields, received=T0)


def log() -> list[Entry]:
    found: list[Entry] = []
    for number in range(300):
        data: dict[str, Any] = {} if number % 7 == 0 else {"nr": number}  # some skip
        event = Event.create(
            "order.paid",
            app_id=f"a{number % 3}",
            chat_id="c",
            workflow="Shop",
            data=data,
            id=str(number % 252),
            time=T0,
        )  # some are copies
        found.append(entry(number, wire.encode(event)))
    found[50] = entry(50, {b"data": b"broken"})
    large = {"messages": [{"role": "user", "text": "x " * 100_000}], "user_id": "u"}
    found[60] = entry(60, wire.encode(Event.create("memory.add", app_id="a0", chat_id="c", data=large, time=T0)))
    return found


async def test_turns_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = log()
    active = FixedRules(rules(tmp_path))
    at_once = read_range(0, entries, active, RecentEvents())
    sizes: list[tuple[int, int]] = []
    real = turns.match_range

    def matching(partition: int, some: Any, *more: Any, **named: Any) -> Any:
        sizes.append((len(some), sum(size_of(each.entry.fields) for each in some)))
        return real(partition, some, *more, **named)

    monkeypatch.setattr(turns, "match_range", matching)
    decoded = await turns.decode_in_turns(entries, active)
    found = await turns.match_in_turns(0, decoded, RecentEvents())
    assert found.copies == at_once.copies == 48
    assert {app: [each.entry.offset for each in events] for app, events in found.apps.items()} == {
        app: [each.entry.offset for each in events] for app, events in at_once.apps.items()
    }
    assert found.skips
    assert [skip.entry.offset for skip in found.skips] == [skip.entry.offset for skip in at_once.skips]
    assert [letter.id for letter in found.letters] == [letter.id for letter in at_once.letters] == ["0:50-0"]
    assert sum(count for count, _ in sizes) == 300
    assert max(count for count, _ in sizes) == turns.TURN_EVENTS
    assert all(count == 1 or size <= turns.TURN_BYTES for count, size in sizes)
    assert (1, size_of(entries[60].fields)) in sizes


async def test_other_tasks_run_between_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    active = FixedRules(rules(tmp_path))
    steps: list[str] = []

    async def other() -> None:
        while True:
            steps.append("other")
            await asyncio.sleep(0)

    real = turns.decode_range
    monkeypatch.setattr(turns, "decode_range", lambda some, rules: (steps.append("turn"), real(some, rules))[1])
    task = asyncio.create_task(other())
    await turns.decode_in_turns(log(), active, turns=turns.TurnClock(turn_s=-1.0))
    task.cancel()
    assert "turn other turn" in " ".join(steps)
    assert "turn turn" not in " ".join(steps)


def test_a_page_has_two_entries_of_any_size() -> None:
    entries = [entry(number, {b"data": b"x" * 100}) for number in range(5)]
    assert last_page(entries, most_bytes=10_000) == entries
    assert last_page(entries, most_bytes=3 * 104) == entries[2:]
    assert last_page(entries, most_bytes=1) == entries[3:]
    assert last_page(entries[:1], most_bytes=1) == entries[:1]
    assert last_page([], most_bytes=1) == []
