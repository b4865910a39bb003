"""The events that are measured: recorded runs of an airline's support, and tool calls of 100 chats in turn.

Each measurement gets events of its own (the engine drops second copies), so ids hold a place for the run's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import chain, count, islice, zip_longest
from pathlib import Path
from typing import Final

from graphweft.transport import Outgoing
from graphweft_contracts import Event, wire
from graphweft_workers.imports.files import read_runs
from graphweft_workers.imports.openai_chat import ChatImportOptions, events_of_runs

ROOT: Final = Path(__file__).parents[1]
APP: Final = "bench"
CHATS: Final = 100
_RUN: Final = "@run@"


@dataclass(frozen=True, slots=True)
class Workload:
    """Events and the rules they meet. ``applied`` counts in the graph how many events have taken effect."""

    name: str
    rules: Path
    applied: str

    def events(self, size: int) -> Sequence[Event]:
        """Return the first ``size`` events; a larger size begins with the same ones."""
        return _events(self.name).first(size)

    def outgoing(self, size: int, run: str) -> Iterator[Outgoing]:
        """Yield the events as the client sends them, with ``run`` in their ids."""
        for key, fields in _encoded(self.name).first(size):
            data = fields[wire.DATA].replace(_RUN.encode(), run.encode())
            yield Outgoing(key=key, fields={**fields, wire.DATA: data})


CALLS: Final = Workload(
    "calls", ROOT / "benchmarks/workflows", "MATCH (j:Journey) RETURN coalesce(sum(j.calls), 0) AS applied"
)
AIRLINE: Final = Workload(
    "airline",
    ROOT / "examples/airline/workflows",
    # The counters that one rule each moves by one per event: together every event once.
    "OPTIONAL MATCH (j:Journey) "
    "WITH sum(coalesce(j.turns, 0) + coalesce(j.answers, 0) "
    "+ CASE WHEN j.status = 'COMPLETE' THEN 1 ELSE 0 END) AS of_chats "
    # Added up in a step of its own: FalkorDB 4.22 returns null for `of_chats + sum(…)`.
    "OPTIONAL MATCH (t:Tool) WITH of_chats, sum(coalesce(t.calls, 0)) AS of_tools "
    "RETURN of_chats + of_tools AS applied",
)
BY_NAME: Final[Mapping[str, Workload]] = {workload.name: workload for workload in (CALLS, AIRLINE)}


class _Kept[T]:
    """The beginning of what never ends, made once: encoding takes longer than sending."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._made: list[T] = []

    def first(self, size: int) -> Sequence[T]:
        self._made.extend(islice(self._items, max(0, size - len(self._made))))
        return self._made[:size]


@cache
def _events(name: str) -> _Kept[Event]:
    return _Kept(_endless(name))


@cache
def _encoded(name: str) -> _Kept[tuple[str, Mapping[bytes, bytes]]]:
    return _Kept((event.key, wire.encode(event)) for event in _endless(name))


def _endless(name: str) -> Iterator[Event]:
    return _calls() if name == CALLS.name else _airline()


def _calls() -> Iterator[Event]:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for number in count():
        yield Event.create(
            "tool.call_complete",
            app_id=APP,
            chat_id=f"chat-{number % CHATS}",
            workflow="Calls",
            user_id=f"user-{number % 37}",
            data={
                "agent_name": "helper",
                "tool_name": f"tool-{number % 20}",
                "call_id": f"{_RUN}-{number}",
                "success": number % 10 != 0,
                "arguments": {"query": f"the {number}th question of many", "limit": number % 50},
                "result": {"text": "x" * 120, "items": [number, number + 1]},
            },
            context={"user_id": f"user-{number % 37}", "phase": "working"},
            id=f"{_RUN}-{number}",
            source="/benchmarks",
            time=start + timedelta(milliseconds=number),
        )


def _airline() -> Iterator[Event]:
    """The recorded runs, one event of each in turn; then the same as other chats, and so on."""
    options = ChatImportOptions(
        app_id=APP, workflow="AirlineSupport", agent="AirlineAgent", chat_id="task{task_id}-trial{trial}"
    )
    chats: dict[str, list[Event]] = {}
    for event in events_of_runs(read_runs(ROOT / "examples/airline/data/tau-airline-gpt4o.jsonl.gz"), options):
        chats.setdefault(event.chatid, []).append(event)
    in_turn = [event for event in chain(*zip_longest(*chats.values())) if event is not None]
    for copy in count():
        for event in in_turn:
            chat = f"{event.chatid}-{copy}"
            yield event.model_copy(update={"id": f"{_RUN}-{copy}-{event.id}", "chatid": chat})
