"""The jobs of memory: how far they are, what they wait for, and what they left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from graphweft_contracts import channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.plurals import counted
from graphweft_workers.engine.usage.waits import JOB, JOB_SHOWN_S, WaitRecord, wait_records
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.position_note import PositionNote
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import features as jobs

_SKIPS: Final[Mapping[str, str]] = {
    "text_refused": "texts have no vector, because the embedder refuses them: searches find them by words and time; "
    "`graphweft memory embed --app APP` asks again",
    "query_failed": "looks at the graph failed: a thread is looked at again with its next message, and an app's "
    "retention with the next run",
    "event_refused": "results were refused by the bus, usually because they are too large: the log of the memory "
    "worker names them",
    "events_lost": "events were trimmed from the bus before the job read them: trim with `graphweft trim` only",
    "made_of_erased": "results were put on the bus at the moment at which an erasure ended, and may be made of what it "
    "erased: give the same `graphweft erase` again",
}
_MOST_NAMES: Final = 10
_GOES_ON: Final = "its events wait in the log, and it goes on by itself once this is mended"
MODELS: Final[Mapping[str, str]] = {
    channels.MEMORY_GROUP: "embedder",
    channels.CONSOLIDATION_GROUP: "summariser",
    channels.VERDICTS_GROUP: "judge",
    channels.EPISODES_GROUP: "extractor",
}
"""The model that a job asks, by the job's group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWait:
    """What a worker of a job waits for."""

    worker: str
    since: str
    partitions: int
    reason: str
    next: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSkips:
    """What a job left out of an app for one reason, repeated work included; shown for a week after the last time."""

    app_id: str | None
    """None for what is of no app."""
    reason: str
    count: int

    def text(self) -> str:
        """Return it as a sentence, with what to do."""
        app = "" if self.app_id is None else f"{self.app_id}: "
        return f"{app}{self.count:,} {_SKIPS.get(self.reason, self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of one job, over all its workers."""

    group: str
    lag: int | None
    """Events that it has not handled; None if these settings do not ask for the job."""
    partitions: int
    """How many there are; 0 if these settings do not ask for the job."""
    idle: Sequence[int]
    """Partitions that no worker of it reads; empty likewise."""
    behind: Sequence[str]
    """Apps that wait while others go on; empty likewise."""
    waits: Sequence[JobWait]
    skips: Sequence[JobSkips]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)

    def notices(self) -> list[str]:
        """Return what needs attention, as sentences."""
        found = [
            f"the job {self.group} waits in {counted(each.partitions, 'partition')} since {each.since} (worker "
            f"{each.worker}): {each.reason}; {each.next}"
            for each in self.waits
        ]
        if self.behind:
            some = ", ".join(self.behind[:_MOST_NAMES]) + (" and others" if len(self.behind) > _MOST_NAMES else "")
            waiting = counted(len(self.behind), "app that waits", "apps that wait")
            found.append(f"the job {self.group} goes on without {waiting}: {some}")
        if self.idle and self.lag:
            idle = counted(len(self.idle), "partition has", "partitions have")
            found.append(f"the job {self.group}: {idle} no worker: start `graphweft run memory`")
        return found


async def job_states(settings: Settings, bus: Bus, *, clock: Clock = SYSTEM_CLOCK) -> list[JobState]:
    """Return the jobs that the settings ask for, and others that have a record. Raises ``BusUnavailable``."""
    records = (await bus.usage.after(None)).found
    now, shown_s = clock.now().timestamp(), _shown_s(settings)
    of_group: dict[str, dict[str, WaitRecord]] = {group: {} for group in jobs.groups(settings)}
    asked = frozenset(of_group)
    for name, record in wait_records(records, JOB):
        group, _, worker = name.partition(":")
        of_group.setdefault(group, {})[worker] = record
    return [
        JobState(
            group=group,
            **await _lag(bus, group, asked=group in asked),
            **_of_workers(group, workers, now, shown_s),
        )
        for group, workers in of_group.items()
    ]


def waits_of(
    settings: Settings, group: str, records: Mapping[str, bytes], *, clock: Clock = SYSTEM_CLOCK
) -> list[JobWait]:
    """Return what the workers of one group wait for."""
    workers = dict(wait_records(records, f"{JOB}{group}:"))
    return _waits(group, workers, clock.now().timestamp(), _shown_s(settings))


def _shown_s(settings: Settings) -> float:
    return JOB_SHOWN_S + 2 * settings.extractor_timeout_ms / 1000  # a try of an episode and a test request


async def _lag(bus: Bus, group: str, *, asked: bool) -> Mapping[str, Any]:
    if not asked:
        return {"lag": None, "partitions": 0, "idle": [], "behind": []}
    partitions = await bus.partitions.status(group=group)
    idle = [each.id for each in partitions if each.owner is None]
    behind = sorted({app_id for each in partitions for app_id in PositionNote.decode(each.note).parked})
    lag = sum(each.lag for each in partitions)
    return {"lag": lag, "partitions": len(partitions), "idle": idle, "behind": behind}


def _next(group: str) -> str:
    """Return what happens next: running workers keep their settings."""
    if group not in MODELS:
        return _GOES_ON
    name = f"GRAPHWEFT_{MODELS[group].upper()}"
    return f"{_GOES_ON}; if you change {name}, {name}_URL or {name}_API_KEY, restart the memory worker"


def _waits(group: str, workers: Mapping[str, WaitRecord], now: float, shown_s: float) -> list[JobWait]:
    return [
        JobWait(
            worker=worker, since=each.since_text(), partitions=each.partitions, reason=each.error, next=_next(group)
        )
        for worker, each in workers.items()
        if each.waits(now, shown_s)
    ]


def _of_workers(group: str, workers: Mapping[str, WaitRecord], now: float, shown_s: float) -> Mapping[str, Any]:
    skipped: Counter[tuple[str, str]] = Counter()
    for each in workers.values():
        for app_id, counts in each.recent(now).items():
            skipped.update({(app_id, reason): number for reason, number in counts.items()})
    skips = [
        JobSkips(app_id=app_id or None, reason=reason, count=number)
        for (app_id, reason), number in skipped.most_common()
    ]
    return {"waits": _waits(group, workers, now, shown_s), "skips": skips}
