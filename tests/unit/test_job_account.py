"""The account of a job: what it waits for is on the bus while it waits, and what it left out for a week."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from tests.services.virtual_time import VirtualClock

from graphweft_contracts import BusUnavailable, Transient
from graphweft_contracts.clock import SYSTEM_CLOCK
from graphweft_workers.engine.usage.job_account import JobAccount
from graphweft_workers.engine.usage.waits import (
    JOB,
    JOB_SHOWN_S,
    WaitRecord,
    count_skips,
    forget_skips,
    wait_records,
)
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.partitions import PartitionStatus
from graphweft_workers.ports.position_note import ParkedApp, PositionNote
from graphweft_workers.ports.records import Records
from graphweft_workers.settings.settings import Settings
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.wiring.job_states import job_states

KEY = f"{JOB}verdicts:w"
EVENTS, TICK, OTHER = (3, "events"), (3, "tick"), (5, "events")
DAY_S = 24 * 3600.0


class Kept:
    """A ``RecordLog`` in memory, which may refuse."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.writes = 0
        self.refuses = False

    async def put(self, key: str, record: bytes | None) -> None:
        if self.refuses:
            raise BusUnavailable("no")
        self.writes += 1
        self.found.pop(key, None)
        if record is not None:
            self.found[key] = record

    async def after(self, mark: int | None) -> Records:
        return Records(found=dict(self.found), mark=0)


def bus_of(kept: Kept, *partitions: PartitionStatus) -> Bus:
    """A bus of which only the records and the state of partitions are read."""

    async def status(*, group: str) -> Sequence[PartitionStatus]:
        return partitions

    return cast(Bus, SimpleNamespace(usage=kept, partitions=SimpleNamespace(status=status)))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def account(kept: Kept, clock: VirtualClock) -> JobAccount:
    return await begun(kept, clock)


async def begun(kept: Kept, clock: VirtualClock, name: str = "w") -> JobAccount:
    made = JobAccount(kept, "verdicts", name=name, logger=get_logger("graphweft.memory"), clock=clock)
    await made.begin()
    return made


def failure(message: str = "the endpoint refuses the key (401)") -> Transient:
    return Transient(message, retry_after_s=1.0)


def record(kept: Kept) -> WaitRecord | None:
    return dict(wait_records(kept.found, "")).get(KEY)


def skipped(found: WaitRecord | None) -> Mapping[str, Mapping[str, int]]:
    assert found is not None
    return found.skipped


async def test_a_short_wait_is_not_recorded_and_a_longer_one_is(
    account: JobAccount, kept: Kept, clock: VirtualClock
) -> None:
    await account.waits(EVENTS, failure("behind"), 0.1)
    assert (kept.found, account.waiting_s) == ({}, 0.0)
    clock.advance(0.95)
    await account.waits(EVENTS, failure(), 0.1)
    found = record(kept)
    assert found is not None
    assert (found.error, found.partitions) == ("the endpoint refuses the key (401)", 1)
    assert found.since == pytest.approx(clock.now().timestamp() - 0.95)
    assert account.waiting_s == 0.95


async def test_a_wait_begins_with_the_partition_that_waits_longest_and_ends_with_the_last(
    account: JobAccount, kept: Kept, clock: VirtualClock
) -> None:
    await account.waits(EVENTS, failure("first"), 5.0)
    clock.advance(20.0)
    await account.waits(OTHER, failure("second"), 5.0)
    await account.waits(TICK, failure("third"), 5.0)
    found = record(kept)
    assert found is not None
    assert (found.error, found.partitions) == ("first", 2)
    await account.goes_on(EVENTS)
    await account.leaves(TICK)
    assert (account.waiting_s, len(kept.found)) == (0.0, 1)
    await account.leaves(OTHER)
    assert kept.found == {}


async def test_the_record_of_a_wait_is_renewed_but_not_each_time(
    account: JobAccount, kept: Kept, clock: VirtualClock
) -> None:
    for _ in range(30):
        await account.waits(EVENTS, failure(), 1.0)
        clock.advance(1.0)
    assert kept.writes == 3


async def test_counts_go_on_after_a_restart_and_a_wait_does_not(
    account: JobAccount, kept: Kept, clock: VirtualClock
) -> None:
    await account.skips(Counter({("acme", "text_refused"): 2, ("", "events_lost"): 7}))
    await account.waits(EVENTS, failure(), 1.0)
    again = await begun(kept, clock)
    found = record(kept)
    assert found is not None
    assert found.since == 0.0
    await again.skips(Counter({("acme", "text_refused"): 1}))
    assert skipped(record(kept)) == {"acme": {"text_refused": 3}, "": {"events_lost": 7}}


async def test_records_of_workers_that_ended_are_removed_after_a_week(
    account: JobAccount, kept: Kept, clock: VirtualClock
) -> None:
    await account.skips(Counter({("acme", "text_refused"): 1}))
    of_others = {f"{JOB}episodes:w": kept.found[KEY], "effects:w": kept.found[KEY]}
    kept.found |= of_others | {f"{JOB}verdicts:odd": b"no record"}
    clock.advance(6 * DAY_S)
    await begun(kept, clock, "x")
    assert kept.found.keys() == {KEY, *of_others}
    clock.advance(2 * DAY_S)
    await begun(kept, clock, "y")
    assert kept.found.keys() == of_others.keys()


async def test_a_bus_that_refuses_stops_nothing_and_gets_the_record_later(
    kept: Kept, clock: VirtualClock, account: JobAccount
) -> None:
    await account.waits(EVENTS, failure(), 1.0)
    kept.refuses = True
    with capture_logs() as logs:
        await account.skips(Counter({("acme", "text_refused"): 1}))
        await account.goes_on(EVENTS)
    assert [each["log_level"] for each in logs if each["event"] == "job_account_not_kept"] == ["warning", "debug"]
    kept.refuses = False
    await account.goes_on(EVENTS)
    found = record(kept)
    assert found is not None
    assert (found.since, skipped(found)) == (0.0, {"acme": {"text_refused": 1}})


async def warned(account: JobAccount, *messages: str) -> list[str]:
    with capture_logs() as logs:
        for message in messages:
            await account.waits(EVENTS, failure(message), 1.0)
    return [each["error"] for each in logs if each["log_level"] == "warning"]


async def test_a_reason_that_changes_is_warned_of(account: JobAccount) -> None:
    behind, refused = "the mutation workers have not applied 3:17-0 yet", "the endpoint refuses the key (401)"
    said = await warned(account, behind, refused, refused, behind.replace("3:17-0", "5:18-2"), refused)
    assert said == [behind, refused]


async def test_an_outage_of_one_partition_is_warned_of_once_while_others_go_on(account: JobAccount) -> None:
    with capture_logs() as logs:
        for _ in range(5):
            await account.waits(EVENTS, failure(), 1.0)
            await account.waits(TICK, failure(), 1.0)
            await account.goes_on(OTHER)
        await account.goes_on(EVENTS)
        await account.leaves(TICK)
        await account.goes_on(OTHER)
        await account.waits(OTHER, failure(), 1.0)
    said = [(each["event"], each["log_level"]) for each in logs if each["log_level"] != "debug"]
    assert said == [("job_waits", "warning"), ("job_goes_on", "info"), ("job_waits", "warning")]


async def test_short_waits_one_after_the_other_are_not_warned_of(account: JobAccount, clock: VirtualClock) -> None:
    with capture_logs() as logs:
        for _ in range(50):
            for _ in range(3):
                await account.waits(EVENTS, failure(), 0.1)
                clock.advance(0.1)
            await account.goes_on(EVENTS)
    assert {(each["event"], each["log_level"]) for each in logs} == {("job_waits", "debug")}
    with capture_logs() as logs:
        for _ in range(30):
            await account.waits(EVENTS, failure(), 0.1)
            clock.advance(0.1)
        await account.goes_on(EVENTS)
    said = [each["event"] for each in logs if each["log_level"] != "debug"]
    assert said == ["job_waits", "job_goes_on"]


async def test_the_warnings_of_an_outage_are_bounded(account: JobAccount) -> None:
    said = await warned(account, *(f"reason {chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(100)))
    assert len(said) == 20


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"at": 1, "since": 1e300, "error": ""}', b'{"at": 1, "since": 1e17, "error": ""}',
             b'{"at": 1, "since": "x", "error": ""}',
             b'{"at": 1, "since": 0, "error": "", "skipped": {"a": {"b": "c"}}}']
)  # fmt: skip
def test_what_is_no_record_is_left_out(body: Any) -> None:
    assert list(wait_records({KEY: body}, JOB)) == []


async def test_what_was_left_out_of_an_app_is_forgotten_a_week_after_the_last_time(
    kept: Kept, clock: VirtualClock, account: JobAccount
) -> None:
    await account.skips(Counter({("old", "text_refused"): 2}))
    clock.advance(6 * DAY_S)
    await account.skips(Counter({("new", "text_refused"): 1}))
    assert skipped(record(kept)).keys() == {"old", "new"}
    clock.advance(2 * DAY_S)
    found = record(kept)
    assert found is not None
    assert found.recent(clock.now().timestamp()).keys() == {"new"}
    states = await job_states(Settings(), bus_of(kept), clock=clock)
    assert [each.app_id for state in states for each in state.skips] == ["new"]
    await account.skips(Counter({("new", "text_refused"): 1}))
    assert skipped(record(kept)) == {"new": {"text_refused": 2}}
    clock.advance(8 * DAY_S)
    await account.waits(EVENTS, failure(), 5.0)
    await account.goes_on(EVENTS)
    assert record(kept) is None


async def test_a_worker_follows_an_erasure(kept: Kept, clock: VirtualClock, account: JobAccount) -> None:
    await account.skips(Counter({("gone", "text_refused"): 2, ("stays", "text_refused"): 3}))
    assert await count_skips(kept, "gone") == 2
    await forget_skips(kept, "gone")
    assert await count_skips(kept, "gone") == 0
    await account.skips(Counter({("stays", "text_refused"): 1}))
    assert skipped(record(kept)) == {"stays": {"text_refused": 4}}
    again = await begun(kept, clock)
    await again.skips(Counter({("new", "text_refused"): 1}))
    assert skipped(record(kept)).keys() == {"stays", "new"}


async def test_a_worker_follows_an_erasure_of_all_that_it_counted(kept: Kept, account: JobAccount) -> None:
    await account.skips(Counter({("gone", "text_refused"): 2}))
    await forget_skips(kept, "gone")
    await account.waits(EVENTS, failure(), 5.0)
    assert skipped(record(kept)) == {}
    await account.goes_on(EVENTS)
    assert record(kept) is None


async def test_a_wait_is_shown_until_a_slow_model_could_have_failed_again() -> None:
    """Between two records of a wait are a try of an episode and a test request."""
    now = SYSTEM_CLOCK.now().timestamp()
    timeout_s = 1_000.0
    settings = Settings(extractor_timeout_ms=int(timeout_s * 1000))
    ages = {"w": JOB_SHOWN_S + 2 * timeout_s - 60, "ended": JOB_SHOWN_S + 2 * timeout_s + 1}
    records = {
        f"{JOB}episodes:{name}": WaitRecord(at=now - age, since=now - age, error="no answer", partitions=1).encode()
        for name, age in ages.items()
    }
    kept = Kept()
    kept.found |= records
    [state] = await job_states(settings, bus_of(kept))
    assert [each.worker for each in state.waits] == ["w"]


async def test_apps_that_wait_while_others_go_on_are_named(kept: Kept) -> None:
    note = PositionNote(parked={"shop": ParkedApp(at="4", why="waits")}, done="9").encode()
    one, other = (
        PartitionStatus(id=number, position="4", end="9", lag=5, owner="w", written=9, trimmed=0, note=each)
        for number, each in enumerate((note, ""))
    )
    [state] = await job_states(Settings(embedder="hash:8"), bus_of(kept, one, other))
    assert (state.behind, state.lag) == (["shop"], 10)
    assert state.notices() == ["the job graphweft-memory goes on without 1 app that waits: shop"]


async def test_names_of_many_apps_do_not_fill_an_account(kept: Kept, clock: VirtualClock, account: JobAccount) -> None:
    await account.skips(Counter({("most", "text_refused"): 2}))
    for batch in range(5):
        clock.advance(1.0)
        await account.skips(Counter({(f"app{batch}-{number}", "text_refused"): 1 for number in range(500)}))
    found = record(kept)
    assert found is not None
    assert len(found.skipped) == len(account._skipped) == 1_000
    assert {"most", "app4-0", "app4-499"} <= found.skipped.keys()


async def test_any_text_of_an_error_is_written(kept: Kept, account: JobAccount) -> None:
    await account.waits(EVENTS, Transient("bad \ud800"), 5.0)
    found = record(kept)
    assert found is not None
    assert "bad \\ud800" in found.error
