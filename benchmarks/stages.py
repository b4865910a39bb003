"""(q) CPU time of a worker for each event, by stage, without servers; each beside parsing the JSON of the same events.

A stage takes what the one before has left in ``Work``. A round takes all batches of a workload through all stages, and
each round begins with another workload. To add a stage, append it to ``STAGES``.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic_core import from_json
from tests.services.rules import load_rules

from benchmarks.harness import Bench, Result, Spread, in_turn
from benchmarks.services import Services
from benchmarks.workload import AIRLINE, CALLS, Workload
from graphweft_contracts import wire
from graphweft_rules import RuleSet
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.read import Range, ReadEntry, decode_range, match_range
from graphweft_workers.engine.log.reading_window import ReadingWindow
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.rule_sets.active_rules import FixedRules
from graphweft_workers.support.garbage_collection import collect_less_often

ROW: Final = "q"
EVENTS: Final = 10_000
QUICK_EVENTS: Final = 2_000
BATCH: Final = 500
_PARTITION: Final = 0


@dataclass(slots=True, kw_only=True)
class Work:
    """What the stages of a partition keep between batches, and what they have made of the current batch."""

    rules: RuleSet
    recent: RecentEvents = field(default_factory=RecentEvents)
    window: ReadingWindow = field(default_factory=lambda: ReadingWindow(CommittedPosition()))
    entries: Sequence[Entry] = ()
    decoded: Sequence[ReadEntry] = ()
    matched: Range = field(default_factory=Range)


def _parse(work: Work) -> None:
    for entry in work.entries:
        from_json(entry.fields[wire.DATA])


def _decode(work: Work) -> None:
    work.decoded = decode_range(work.entries, FixedRules(work.rules))


def _take(work: Work) -> None:
    work.window.add(work.decoded)
    work.decoded = work.window.take(BATCH).entries


def _match(work: Work) -> None:
    work.matched = match_range(_PARTITION, work.decoded, work.recent)


PARSE: Final = "parse JSON"
STAGES: Final[dict[str, Callable[[Work], None]]] = {
    PARSE: _parse,  # the measure of the others, and none of the worker's own
    "decode": _decode,
    "turns": _take,
    "match": _match,
}
TOTAL: Final = "all stages"


async def run(bench: Bench, _services: Services) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="graphweft-bench-") as folder:
        single = _single(Path(folder) / "single")
        workloads = {"1 mutation": single, "3 mutations": CALLS, "airline": AIRLINE}
        events = QUICK_EVENTS if bench.quick else EVENTS
        batches = {name: list(_batches(workload, events)) for name, workload in workloads.items()}
        rules = {name: load_rules(workload.rules) for name, workload in workloads.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in workloads}
    before = gc.get_threshold()
    collect_less_often()  # as a worker does
    for number in bench.turns("stages"):
        for name in in_turn(list(workloads), number):
            taken = cpu_us(rules[name], batches[name])
            found[name].append(taken)
            bench.say(f"  [dim]{name}[/] " + ", ".join(f"{stage} {us:.1f}" for stage, us in taken.items()))
    gc.unfreeze()
    gc.set_threshold(*before)
    return [_line(name, stage, rounds) for name, rounds in found.items() for stage in rounds[0] if stage != PARSE]


def cpu_us(rules: RuleSet, batches: Sequence[Sequence[Entry]]) -> dict[str, float]:
    """Return the microseconds of CPU that each stage takes for an event, and all stages together."""
    work = Work(rules=rules)
    spent = dict.fromkeys(STAGES, 0)
    gc.collect()
    for work.entries in batches:
        for name, stage in STAGES.items():
            begun = time.process_time_ns()
            stage(work)
            spent[name] += time.process_time_ns() - begun
    events = sum(map(len, batches))
    found = {name: each / events / 1_000 for name, each in spent.items()}
    return {**found, TOTAL: sum(found.values()) - found[PARSE]}


def _line(name: str, stage: str, rounds: Sequence[dict[str, float]]) -> Result:
    return Result(
        row=ROW,
        title=f"{name}: {stage} / {PARSE}",
        ratio=Spread.of([each[stage] / each[PARSE] for each in rounds]),
        of=(stage, Spread.of([each[stage] for each in rounds])),
        to=(PARSE, Spread.of([each[PARSE] for each in rounds])),
        unit="µs CPU an event",
    )


def _batches(workload: Workload, events: int) -> Iterator[list[Entry]]:
    """Yield the entries of events as a bus returns them, each with fields of its own."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    entries = [
        Entry(
            offset=f"{number + 1}-0",
            fields={bytes(bytearray(key)): bytes(bytearray(value)) for key, value in outgoing.fields.items()},
            received=start + timedelta(milliseconds=number),
        )
        for number, outgoing in enumerate(workload.outgoing(events, "stages"))
    ]
    for begin in range(0, events, BATCH):
        yield entries[begin : begin + BATCH]


def _single(folder: Path) -> Workload:
    """Return the calls with their first mutation only."""
    shutil.copytree(CALLS.rules, folder)
    file = folder / "Calls/graph_injection.yaml"
    text = file.read_text()
    first, _, _ = text.partition('      - id: "link_call"')
    file.write_text(first + text[text.index("\n# What row (g)") :])
    return Workload(CALLS.name, folder, CALLS.applied)
