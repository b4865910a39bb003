"""Which events of the log a graph is known to hold, by the position of the workers and its note."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL

from graphweft_contracts import Event, wire
from graphweft_workers.injection.background import Background
from graphweft_workers.injection.positions import Position, Positions
from graphweft_workers.injection.versions import GraphVersions, Version
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.rule_sets.lost_rules import MissingRules


@dataclass
class Empty:
    """The versions of a graph without a checkpoint, whose writes are seen at once."""

    settle_s: float = 0.0
    graph: Empty = field(init=False)

    def __post_init__(self) -> None:
        self.graph = self

    def read(self, app_id: str) -> asyncio.Future[Version]:
        found: asyncio.Future[Version] = asyncio.get_running_loop().create_future()
        found.set_result(Version(checkpoints={}, seen=0.0))
        return found


class Lost:
    """Rules of which nobody knows what they would do."""

    def current(self, app_id: str) -> MissingRules:
        return MissingRules("0" * 64)


@pytest.mark.parametrize(
    ("offset", "note", "behind"),
    [
        ("5", PositionNote(), 0),
        ("4", PositionNote(), 1),
        ("5", PositionNote(again="5", again_at="3"), 2),
        ("5", PositionNote(again="5", again_at="5"), 0),
        ("2", PositionNote(parked={"other": ParkedApp(at="2")}, done="5"), 0),
        ("2", PositionNote(parked={"shop": ParkedApp(at="3")}, done="5"), 2),
    ],
)
async def test_what_is_applied_again_or_waits_is_not_done(offset: str, note: PositionNote, behind: int) -> None:
    entries = [
        Entry(
            offset=str(number), received=VIRTUAL.now(),
            fields=wire.encode(Event.create("a.b", app_id="shop", chat_id="c", id=str(number), source="/t")),
        )
        for number in range(1, 6)
    ]  # fmt: skip
    bus, background = memory_bus([entries]), Background()
    await bus.partitions.commit(0, CommittedPosition(offset=offset, count=int(offset), note=note.encode()))
    positions = Positions(bus, cast("GraphVersions", Empty()), cast("ActiveRules", Lost()), background, clock=VIRTUAL)
    found = await positions.reach("shop", Position(partition=0, offset="5"), VIRTUAL.monotonic() + 5)
    assert (0 if found.behind is None else await found.behind) == behind
    await background.aclose()
