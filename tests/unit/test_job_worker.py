"""A worker of a job: an app for which the job fails waits, and holds up no other app."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest
from tests.chaos.memory_bus import memory_bus
from tests.services.virtual_time import VIRTUAL
from tests.services.workers import running

from graphweft import Event
from graphweft.transport import Outgoing, Transport
from graphweft_contracts import PartitionRefused, Transient, wire
from graphweft_workers.engine.job_progress import JobProgress, WaitingApp
from graphweft_workers.engine.job_worker import JobWorker
from graphweft_workers.engine.usage.waits import count_skips
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.event_log import CommittedPosition, Entry
from graphweft_workers.ports.job import AppWait, Job, JobEvent
from graphweft_workers.ports.position_note import MOST_PARKED, ParkedApp, PositionNote
from graphweft_workers.ports.purges import Purge, put_purge


def said(app_id: str, number: int) -> Event:
    return Event.create("note.taken", app_id=app_id, chat_id="c", id=f"{app_id}{number}", source="/test", data={})


def entry_of(number: int, event: Event) -> Entry:
    return Entry(offset=str(number), fields=wire.encode(event), received=VIRTUAL.now())


def entries_of(events: Sequence[Event]) -> list[Entry]:
    return [entry_of(number, event) for number, event in enumerate(events, 1)]


def bus_of(events: Sequence[Event]) -> Bus:
    return growing_bus(events)[0]


def growing_bus(events: Sequence[Event]) -> tuple[Bus, Callable[[Event], None]]:
    """Return a bus, and what appends an event to its log."""
    entries = entries_of(events)

    def append(event: Event) -> None:
        entries.append(entry_of(len(entries) + 1, event))

    return memory_bus([entries]), append


class Taken:
    """The part of a transport that a job needs: it keeps what it gets, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.refused: Callable[[str], bool] = lambda app_id: False
        self.refusals = 0
        self.takes_s = 0.0
        self.sending = False

    async def append(self, events: Sequence[Outgoing]) -> None:
        found = [wire.decode(each.fields, received=VIRTUAL.now()) for each in events]
        if any(self.refused(each.appid) for each in found):
            self.refusals += 1
            raise PartitionRefused("mend it")
        self.sending = True
        await VIRTUAL.sleep(self.takes_s)
        self.ids += [each.id for each in found]


class Echo(Job):
    """Answers each event by one, unless it fails for the app."""

    group = "graphweft-echo"
    types = frozenset({"note.taken"})

    def __init__(self, *, alone: bool) -> None:
        """``alone``: says for which app it fails; otherwise it fails for all that it is given with it."""
        self.alone = alone
        self.failing: Callable[[str], bool] = lambda app_id: False
        self.takes_s: Callable[[str], float] = lambda app_id: 0.0
        self.given: list[str] = []
        self.asked = 0

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event | AppWait]]:
        self.asked += 1
        await VIRTUAL.sleep(max(self.takes_s(each.event.appid) for each in seen))
        failure = Transient("no answer", retry_after_s=0.5)
        failing = {each.event.appid for each in seen if self.failing(each.event.appid)}
        if failing and not self.alone:
            raise failure
        yield [AppWait(app_id=app_id, error=failure) for app_id in failing]
        for each in seen:
            if each.event.appid not in failing:
                self.given.append(each.event.id)
                yield [said(each.event.appid, int(each.offset)).model_copy(update={"id": f"of {each.event.id}"})]
                each.done = True

    async def aclose(self) -> None:
        pass


@asynccontextmanager
async def working(bus: Bus, job: Job, transport: Taken, *, batch_events: int = 4) -> AsyncIterator[JobWorker]:
    made = JobWorker(bus, cast(Transport, transport), job, name="w", clock=VIRTUAL, batch_events=batch_events)
    async with running(made) as worker:
        yield worker


async def lag(bus: Bus) -> int:
    [status] = await bus.partitions.status()
    return status.lag


def of(*apps: str) -> list[str]:
    return [f"of {each}" for each in apps]


@pytest.mark.parametrize("alone", [True, False])
async def test_an_app_for_which_the_job_fails_holds_up_no_other_app(alone: bool) -> None:
    bus = bus_of([said(app_id, number) for number in range(20) for app_id in ("bad", "good")])
    job, taken = Echo(alone=alone), Taken()
    job.failing = lambda app_id: app_id == "bad"
    async with working(bus, job, taken) as worker:
        await VIRTUAL.sleep(600)
        assert taken.ids == of(*(f"good{number}" for number in range(20)))
        assert await lag(bus) == 40, "the position is that of the app that waits"
        assert worker.account.waiting_s > 500
        assert PositionNote.decode((await bus.partitions.committed(0)).note).parked.keys() == {"bad"}
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(120)
        assert taken.ids[20:] == of(*(f"bad{number}" for number in range(20)))
        assert worker.account.waiting_s == 0
    assert await lag(bus) == 0
    assert (await bus.partitions.committed(0)).note == ""


async def test_what_waits_is_not_lost_at_a_restart_and_nothing_is_done_twice() -> None:
    events = [said(app_id, number) for number in range(20) for app_id in ("one", "good", "two")]
    bus, job, taken = bus_of(events), Echo(alone=True), Taken()
    failing = {"one", "two"}
    job.failing = failing.__contains__
    for _ in range(3):
        async with working(bus, job, taken):
            await VIRTUAL.sleep(600)
    assert taken.ids == of(*(f"good{number}" for number in range(20)))
    failing.remove("two")
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
    assert taken.ids[20:] == of(*(f"two{number}" for number in range(20)))
    failing.clear()
    failing.add("good")  # it has no events that are not done
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
    assert taken.ids[40:] == of(*(f"one{number}" for number in range(20)))
    assert await lag(bus) == 0


async def test_a_worker_that_ends_while_an_app_catches_up_repeats_a_batch_at_most() -> None:
    bus = bus_of([*(said("bad", number) for number in range(40)), said("good", 0)])
    job, taken = Echo(alone=True), Taken()
    job.failing = lambda app_id: app_id == "bad" and len(taken.ids) != 1
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
    assert taken.ids[:1] == of("good0")
    assert 1 < len(taken.ids) <= 5, "it failed again after its first batch"
    job.failing = lambda app_id: False
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
    assert [each for each in taken.ids if each != "of good0"] == of(*(f"bad{number}" for number in range(40)))
    assert await lag(bus) == 0


@pytest.mark.parametrize("parked", [True, False])
async def test_what_is_erased_while_it_waits_is_not_given_to_the_job(parked: bool) -> None:
    apps = ("bad", "good", "bad") if parked else ("bad", "bad")
    entries = entries_of([said(app_id, number) for number, app_id in enumerate(apps)])
    bus, job, taken = memory_bus([entries]), Echo(alone=True), Taken()
    job.failing = lambda app_id: app_id == "bad"
    async with working(bus, job, taken) as worker:
        await VIRTUAL.sleep(600 if parked else 0.2)
        entries[0] = replace(entries[0], fields={}, erased=True)
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(300)
        assert "bad0" not in job.given
        assert len(taken.ids) == len(apps) - 1
        assert worker.account.waiting_s == 0
    assert await lag(bus) == 0


async def test_what_left_the_log_while_it_waits_is_lost_and_counted() -> None:
    entries = entries_of([said("bad", 0), said("good", 1)])
    bus, job = memory_bus([entries]), Echo(alone=True)
    job.failing = lambda app_id: app_id == "bad"
    async with working(bus, job, Taken()):
        await VIRTUAL.sleep(600)
        entries[0] = replace(entries[0], offset="0")
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(300)
        assert "bad0" not in job.given
        assert await count_skips(bus.usage, "bad") == 1


async def test_if_too_many_apps_wait_the_position_waits_with_them() -> None:
    apps = [f"app{number}-" for number in range(MOST_PARKED + 8)]
    bus = bus_of([*(said(app_id, 0) for app_id in apps), said("good", 0)])
    job, taken = Echo(alone=True), Taken()
    job.failing = lambda app_id: app_id != "good"
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        assert taken.ids == []
        assert len(PositionNote.decode((await bus.partitions.committed(0)).note).parked) == MOST_PARKED
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(300)
    assert sorted(taken.ids) == sorted(of(*(f"{app_id}0" for app_id in (*apps, "good"))))
    assert await lag(bus) == 0


@pytest.mark.long(keep=("13-5", "24-1"))
@pytest.mark.parametrize("batch_events", [1, 5, 200])
@pytest.mark.parametrize("count", [13, MOST_PARKED])
async def test_apps_that_wait_hold_up_no_other_app_after_a_restart(count: int, batch_events: int) -> None:
    apps = [f"app{number}-" for number in range(count)]
    bus, append = growing_bus([*(said(app_id, 0) for app_id in apps), *(said("good", number) for number in range(50))])
    job, taken = Echo(alone=True), Taken()
    job.failing = lambda app_id: app_id != "good"
    async with working(bus, job, taken, batch_events=batch_events):
        await VIRTUAL.sleep(600)
    async with working(bus, job, taken, batch_events=batch_events):
        await VIRTUAL.sleep(600)
        for number in range(50, 100):
            append(said("good", number))
        await VIRTUAL.sleep(600)
        assert taken.ids == of(*(f"good{number}" for number in range(100)))
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(300)
    assert sorted(taken.ids[100:]) == sorted(of(*(f"{app_id}0" for app_id in apps)))
    assert await lag(bus) == 0


@pytest.mark.parametrize("first", ["huge", "tiny"])
async def test_apps_that_catch_up_take_turns(first: str) -> None:
    apps = [first, "tiny" if first == "huge" else "huge"]
    bus = bus_of([*(said(app_id, 0) for app_id in apps), *(said("huge", number) for number in range(1, 400))])
    job, taken = Echo(alone=True), Taken()
    job.failing, job.takes_s = lambda app_id: True, lambda app_id: 5.0
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(1000)
    assert len(taken.ids) == 401
    assert taken.ids.index("of tiny0") < 100, "it waits for its next try only, which is a minute away at most"


@pytest.mark.parametrize("count", [1, 5])
async def test_an_app_whose_tries_hang_does_not_delay_other_apps(count: int) -> None:
    bad = [f"bad{number}-" for number in range(count)]
    bus, append = growing_bus([said(app_id, 0) for app_id in bad])
    job, taken = Echo(alone=True), Taken()
    job.failing = lambda app_id: app_id != "good"
    job.takes_s = lambda app_id: 60.0 if job.failing(app_id) else 0.0
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        for number in range(100):
            append(said("good", number))
            await VIRTUAL.sleep(10)
            assert len(taken.ids) == number + 1
        for app_id in bad:
            append(said(app_id, 1))
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(600)
    assert sorted(taken.ids[100:]) == sorted(of(*(f"{app_id}{number}" for app_id in bad for number in range(2))))
    assert await lag(bus) == 0


async def test_a_slow_app_that_catches_up_misses_no_event_that_is_read_meanwhile() -> None:
    bus, append = growing_bus([said("slow", number) for number in range(20)])
    job, taken = Echo(alone=True), Taken()
    job.failing, job.takes_s = lambda app_id: app_id == "slow", lambda app_id: 7.0 if app_id == "slow" else 0.5
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        job.failing = lambda app_id: False
        for number in range(20, 60):
            append(said("slow", number))
            append(said("good", number))
            await VIRTUAL.sleep(3)
        await VIRTUAL.sleep(600)
    assert [each for each in taken.ids if "slow" in each] == of(*(f"slow{number}" for number in range(60)))
    assert len(taken.ids) == 100
    assert await lag(bus) == 0


async def test_a_place_that_a_restart_is_behind_is_kept() -> None:
    """The next owner may end too, before it has read what the one before it had."""
    note = PositionNote(parked={"a": ParkedApp(at="4"), "b": ParkedApp(at="9")}, done="20")
    progress = JobProgress(CommittedPosition(offset="4", count=4, note=note.encode()))
    progress.position = CommittedPosition(offset="6", count=6)
    progress.waiting["c"] = WaitingApp(at=progress.position, end=progress.position, seen=(), since=0)
    kept = progress.committed()
    assert (kept.offset, kept.count) == ("6", 6)
    later = JobProgress(kept)
    first = {app_id: next(n for n in range(5, 30) if not later.is_done(app_id, str(n))) for app_id in "abcd"}
    assert first == {"a": 7, "b": 10, "c": 21, "d": 21}


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_fails_and_ends_each_event_is_done_in_the_order_of_its_app(seed: int) -> None:
    dice = random.Random(seed)
    apps = [f"app{number}-" for number in range(dice.choice((3, 6, 40)))]
    names = [(dice.choice(apps), number) for number in range(150)]
    bus, taken = bus_of([said(*name) for name in names]), Taken()
    for _ in range(8):
        job = Echo(alone=dice.random() < 0.5)
        failing = frozenset(dice.sample(apps, dice.randrange(len(apps))))
        job.failing = failing.__contains__
        async with working(bus, job, taken):
            await VIRTUAL.sleep(dice.choice((0, 0.7, 3, 50)))
    job.failing = lambda app_id: False
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
    assert await lag(bus) == 0
    once = list(dict.fromkeys(taken.ids))
    assert len(taken.ids) - len(once) <= 8 * 4, "a restart repeats a batch at most"
    for app_id in apps:
        assert [each for each in once if app_id in each] == of(*(f"{app}{n}" for app, n in names if app == app_id))


async def test_an_outage_is_waited_for_and_everything_is_done_once() -> None:
    bus = bus_of([said(app_id, number) for number in range(20) for app_id in ("a", "b", "c")])
    job, taken = Echo(alone=False), Taken()
    job.failing = lambda app_id: True
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        assert (taken.ids, await lag(bus)) == ([], 60)
        job.failing = lambda app_id: False
        await VIRTUAL.sleep(600)
    assert sorted(taken.ids) == sorted(of(*(f"{app}{number}" for app in "abc" for number in range(20))))
    assert len(job.given) == 60
    assert await lag(bus) == 0


async def test_while_a_partition_takes_nothing_the_job_is_not_asked_again() -> None:
    bus, job, taken = bus_of([said("a", number) for number in range(6)]), Echo(alone=True), Taken()
    taken.refused = lambda app_id: True
    async with working(bus, job, taken) as worker:
        await VIRTUAL.sleep(600)
        assert (taken.ids, job.given) == ([], ["a0", "a1", "a2", "a3"])
        assert 5 < taken.refusals < 20, "one event is sent at each try"
        assert worker.account.waiting_s > 500
        taken.refused = lambda app_id: False
        await VIRTUAL.sleep(120)
        assert worker.account.waiting_s == 0
    assert taken.ids == of(*(f"a{number}" for number in range(6)))
    assert job.given == [f"a{number}" for number in range(6)]
    assert await lag(bus) == 0


async def test_an_app_whose_partition_takes_nothing_holds_up_no_other_app() -> None:
    bus = bus_of([said(app_id, number) for number in range(20) for app_id in ("bad", "good")])
    job, taken = Echo(alone=True), Taken()
    taken.refused = lambda app_id: app_id == "bad"
    for _ in range(2):
        async with working(bus, job, taken):
            await VIRTUAL.sleep(600)
            assert taken.ids == of(*(f"good{number}" for number in range(20)))
            assert PositionNote.decode((await bus.partitions.committed(0)).note).parked.keys() == {"bad"}
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        taken.refused = lambda app_id: False
        await VIRTUAL.sleep(120)
    assert taken.ids[20:] == of(*(f"bad{number}" for number in range(20)))
    assert await lag(bus) == 0


class Parts(Job):
    """Fails at the second part of an event, once."""

    group = "graphweft-parts"
    types = frozenset({"note.taken"})

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def handle(self, seen: Sequence[JobEvent]) -> AsyncGenerator[Sequence[Event]]:
        for each in seen:
            for part in range(3):
                if part not in each.parts:
                    self.asked.append(part)
                    if self.asked == [0, 1]:
                        raise Transient("no answer", retry_after_s=0.5)
                    yield []
                    each.parts.add(part)

    async def aclose(self) -> None:
        pass


async def test_what_a_job_notes_of_an_event_is_there_at_the_next_try() -> None:
    job = Parts()
    async with working(bus_of([said("a", 0)]), job, Taken()):
        await VIRTUAL.sleep(60)
    assert job.asked == [0, 1, 1, 2]


async def erase(bus: Bus, entries: list[Entry], app_id: str, *numbers: int) -> None:
    """Take entries out of the log, and announce it, as an erasure does."""
    for number in numbers:
        entries[number] = replace(entries[number], fields={}, erased=True)
    await put_purge(bus.purges, Purge(app_id=app_id, erasure=str(numbers)))


@pytest.mark.parametrize("parked", [True, False])
async def test_what_the_bus_has_not_taken_is_dropped_when_its_events_are_erased(parked: bool) -> None:
    entries = entries_of([said("bad", 0), said("bad", 1), *([said("good", 2)] * parked)])
    bus, job, taken = memory_bus([entries]), Echo(alone=True), Taken()
    taken.refused = lambda app_id: app_id == "bad"
    async with working(bus, job, taken) as worker:
        await VIRTUAL.sleep(600 if parked else 0.2)
        assert job.given[:2] == ["bad0", "bad1"]
        await erase(bus, entries, "bad", 0)
        taken.refused = lambda app_id: False
        await VIRTUAL.sleep(300)
        assert [each for each in taken.ids if "bad" in each] == of("bad1")
        assert worker.account.waiting_s == 0
    assert await lag(bus) == 0


@pytest.mark.parametrize("parked", [True, False])
async def test_what_a_model_answers_behind_an_erasure_is_not_appended(parked: bool) -> None:
    entries = entries_of([said("slow", 0), said("slow", 1), *([said("good", 2)] * parked)])
    bus, job, taken = memory_bus([entries]), Echo(alone=True), Taken()
    job.failing, job.takes_s = lambda app_id: parked and app_id == "slow", lambda app_id: 50.0 * (app_id == "slow")
    async with working(bus, job, taken) as worker:
        await VIRTUAL.sleep(600 if parked else 0)
        asked = job.asked
        while job.asked == asked:
            await VIRTUAL.sleep(1)
        job.failing = lambda app_id: False
        assert "of slow0" not in taken.ids
        await erase(bus, entries, "slow", 0)
        await VIRTUAL.sleep(300)
        assert [each for each in taken.ids if "slow" in each] == of("slow1")
        assert worker.account.waiting_s == 0
    assert await lag(bus) == 0


async def test_an_erasure_between_two_results_that_waited_loses_none() -> None:
    entries = entries_of([said("bad", number) for number in range(3)])
    bus, job, taken = memory_bus([entries]), Echo(alone=True), Taken()
    taken.refused = lambda app_id: True
    async with working(bus, job, taken):
        await VIRTUAL.sleep(600)
        taken.refused, taken.takes_s = lambda app_id: False, 30.0
        while not taken.sending:
            await VIRTUAL.sleep(1)
        await erase(bus, entries, "bad", 2)
        await VIRTUAL.sleep(600)
        assert list(dict.fromkeys(taken.ids)) == of("bad0", "bad1")
    assert await lag(bus) == 0


async def test_an_erasure_of_another_app_costs_no_further_try() -> None:
    entries = entries_of([said("slow", 0), said("slow", 1)])
    bus, job, taken = memory_bus([entries]), Echo(alone=True), Taken()
    job.takes_s = lambda app_id: 50.0
    async with working(bus, job, taken):
        await VIRTUAL.sleep(25)
        await erase(bus, entries, "other")
        await VIRTUAL.sleep(300)
    assert job.given == ["slow0", "slow1"]


async def test_an_erasure_that_passes_an_append_is_reported() -> None:
    entries = entries_of([said("a", 0)])
    bus, job, taken = memory_bus([entries]), Echo(alone=True), Taken()
    taken.takes_s = 30.0
    async with working(bus, job, taken):
        await VIRTUAL.sleep(10)
        await erase(bus, entries, "a", 0)
        await VIRTUAL.sleep(300)
    assert taken.ids == of("a0")
    assert await count_skips(bus.usage, "a") == 1


async def test_each_event_that_is_lost_is_counted_once() -> None:
    """By the app that waited for it, and not by the others that read over the same place."""
    events = [said(app_id, number) for number in range(30) for app_id in ("one", "two", "good")]
    bus, job = bus_of(events), Echo(alone=True)
    failing = {"one", "two"}
    job.failing = failing.__contains__
    async with working(bus, job, Taken()):
        await VIRTUAL.sleep(600)
        await bus.partitions.trim(0, "60")
        failing.clear()
        await VIRTUAL.sleep(600)
        assert [await count_skips(bus.usage, app_id) for app_id in ("one", "two", "good", "")] == [20, 20, 0, 0]
    assert await lag(bus) == 0
