"""Erases an app, or one user of it, from every place: log, archive, dead letters, snapshots, graph and caches.

The entries leave the bus and lose their content in the archive, so no replay brings them back. The graph of an app
whose user is erased is built again from what is left, and takes the place of the live one: it is as if the user had
never been there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import uuid4

from graphweft_contracts import BusUnavailable, DeadLetter, InvalidSettings, wire
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.event_rights import INTERNAL_TYPES
from graphweft_contracts.plurals import counted
from graphweft_workers.archive.archived_bus import archived
from graphweft_workers.archive.archiver import archive_now
from graphweft_workers.archive.erasure import count_entries, count_undecided, erase_entries, erased_offsets
from graphweft_workers.archive.erasures import begin_erasure, end_erasure
from graphweft_workers.archive.log_gaps import LogGap, check_accepted, log_gaps, without
from graphweft_workers.archive.prelude_erasure import erase_restored
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.archive.subject import Subject, named_of
from graphweft_workers.archive.trim import trim
from graphweft_workers.engine.log.ledger_reader import ledger_as_lived
from graphweft_workers.engine.log.series_store import forget_marks
from graphweft_workers.engine.usage.waits import count_skips, forget_skips
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_of_rest, letter_pages
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_basis import GraphBasis, logged_basis
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.purges import Purge, put_purge
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.graph_losses import find_losses, labels_of
from graphweft_workers.replay.graphs_lease import GraphsLease
from graphweft_workers.replay.matched_log import RulesReader
from graphweft_workers.replay.rebuild import LogLost, Rebuild
from graphweft_workers.replay.remains import (
    JOB_SKIPS,
    PlaceOfRemains,
    Remains,
    count_nodes,
    holds,
    learn_all,
    on_the_bus,
)
from graphweft_workers.replay.second_queries import check_second_queries, rule_sets
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.rule_sets.lost_rules import RulesLost
from graphweft_workers.support.timing import TIMING, Timing

_UNDECIDED: Final = (
    "entry without a user stays, in a chat with others",
    "entries without a user stay, in chats with others",
)
_CHATS: Final = "of a chat that began there, what names no user may stay"


class Erasure:
    """Erases one subject. The creator closes the bus and the stores."""

    def __init__(
        self,
        alone: Bus,
        blobs: BlobStore,
        live: GraphStore,
        beside: GraphStore,
        *,
        rules: ActiveRules,
        subject: Subject,
        kept: Sequence[GraphStore] = (),
        wait_s: float = 60.0,
        judge: Callable[[Bus], Bus] = lambda bus: bus,
        tell: Callable[[str], None] = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
        timing: Timing = TIMING,
    ) -> None:
        """``alone`` is the bus without the archive.

        ``beside`` is the store for the new graph while it is built, and ``kept`` are stores of graphs that a rebuild
        may have left behind. ``judge`` returns a bus whose entries are judged. ``tell`` gets the name of each step.
        """
        self._alone = alone
        self._log = AppLog(bus=alone, app_id=subject.app_id, live=live)
        self._blobs = blobs
        self._live = live
        self._beside = beside
        self._rules = rules
        self._subject = subject
        self._kept = kept
        self._wait_s = wait_s
        self._judge = judge
        self._tell = tell
        self._clock = clock
        self._timing = timing
        self._reader = ArchiveReader(blobs)
        self._state = ArchivedState(blobs)
        self._lease = GraphsLease.of(
            replace(alone, archive=blobs), subject.app_id, "graphweft erase", clock=clock, timing=timing.replay
        )
        self._deleted = 0
        """Snapshots that were deleted."""
        self._number = 0
        """The number of the erasure in the archive, once it has begun."""

    async def report(self) -> list[PlaceOfRemains]:
        """Return where data of the subject is now. Nothing is changed."""
        return await Remains(self._alone, self._blobs, self._live, self._subject, self._kept).places()

    async def run(self) -> list[PlaceOfRemains]:
        """Erase everything that is on the log now, and return what was where, and what is left.

        After an interruption a further call goes on. Raises ``BusUnavailable``, ``GraphUnavailable``,
        ``ArchiveUnavailable``, and ``InvalidSettings`` as ``Rebuild`` does.
        """
        async with self._lease.held():
            return await self._run()

    async def _run(self) -> list[PlaceOfRemains]:
        partitions = await self._log.partitions()
        ends = await self._log.ends()
        gaps = await self._check_complete(partitions)
        places = await self._erase(partitions, ends, gaps)
        later = await self._log.ends()
        if not any(each.unfinished for each in places) and await self._was_made_meanwhile(ends, later):
            # Once: what jobs put on the bus from now on, they have begun with after the announcement.
            self._tell("erase what was made of it meanwhile")
            places = _together(places, await self._erase(partitions, later, gaps))
        if not any(each.unfinished for each in places):
            await end_erasure(self._blobs, self._subject.app_id, self._number, clock=self._clock)
        return places

    async def _erase(
        self, partitions: Sequence[int], ends: Mapping[int, str], gaps: Sequence[LogGap]
    ) -> list[PlaceOfRemains]:
        """Erase once, and announce it."""
        app_id = self._subject.app_id
        self._tell("wait until the events are applied")
        await self._applied(ends)
        self._tell("archive the log")
        await archive_now(self._alone, self._blobs)
        await learn_all(self._alone, self._blobs, partitions, self._subject)
        await self._check_rules(partitions)
        on_bus = {number: len(await self._on_bus(number)) for number in partitions}
        resumed = await self._begin()
        self._tell("erase entries in the archive" + (", where an erasure was cut off" if resumed else ""))
        erased = left = 0
        for partition in partitions:
            done = await erase_entries(self._reader, partition, self._subject)
            erased, left = erased + done.entries, left + done.left
        restored = await erase_restored(self._blobs, self._subject)
        self._tell("remove entries from the bus")
        bus = await self._off_the_bus(ends, on_bus)
        for partition in partitions:
            await forget_marks(self._alone.series, partition, app_id)
        self._tell("erase dead letters")
        letters = await self._erase_letters(partitions)
        skips = await self._forget_skips()
        await self._snapshots()
        self._tell("make the graph without them")
        graph = await self._erase_from_graph()
        self._tell("purge the caches")
        await self._announce()
        left += await self._count(partitions)
        undecided = sum([await count_undecided(self._reader, each, self._subject) for each in partitions])
        notes = [counted(undecided, *_UNDECIDED)] * bool(undecided) + [f"{without(gaps)}: {_CHATS}"] * bool(gaps)
        note = ". ".join(notes)
        if left:
            note = "another process still writes old entries: give the command again"
        archive = PlaceOfRemains(name="archive", found=erased, left=left, note=note, unfinished=left > 0)
        dropped = [
            PlaceOfRemains(name=name, found=0, left=0, note="dropped within a second")
            for name in ("responder caches", "responder indexes")
        ]
        places = [bus, archive, PlaceOfRemains(name="restored history", found=restored, left=0), *letters, *skips]
        # At the end: a snapshot of before may have been written meanwhile, one of later is of what is left.
        return [*places, await self._snapshots(), graph, *dropped]

    async def _begin(self) -> bool:
        """Record that the erasure begins; return whether it goes on with one that was cut off."""
        if self._number:
            return False
        self._number, resumed = await begin_erasure(
            self._blobs, self._subject.app_id, self._subject.user_id, clock=self._clock
        )
        return resumed

    async def _was_made_meanwhile(self, after: Mapping[int, str], ends: Mapping[int, str]) -> bool:
        """Tell whether the log, or a dead letter, holds something of the subject again that was made of what it held.

        A job that was at work makes it until the erasure is announced, and a dead letter is retried until it is gone.
        What the subject says itself meanwhile is no part of the erasure.
        """
        log = self._archived()
        for number, end in ends.items():
            async for page in log.pages(number, after.get(number, ""), to=end):
                if any(map(self._was_made, page)):
                    return True
        async for letter in self._letters():
            if holds(self._subject, letter):
                return True
        return False

    def _was_made(self, entry: Entry) -> bool:
        """Tell whether an entry of the subject was made of another one: by a job, or by a retry of a dead letter."""
        named = named_of(entry)
        if named is None or not self._subject.holds(entry):
            return False
        if wire.RETRY in entry.fields:
            return True
        if self._subject.user_id is None or not named.made_of:
            return named.type in INTERNAL_TYPES
        return not self._subject.said.isdisjoint(named.made_of)  # and not of what the user says meanwhile

    async def _check_complete(self, partitions: Sequence[int]) -> list[LogGap]:
        """Raise ``InvalidSettings`` if the graph could not be made without the user, before anything is erased.

        Return what the log lacks: nobody can tell whether it was of the subject.
        """
        log = self._archived()
        gaps = await log_gaps(log.bus, partitions)
        if self._subject.user_id is not None and self._live.whole.can_exchange:
            await log.preludes()
            graph = f"the graph of {self._subject.app_id!r} cannot be made again without the user; nothing was erased"
            check_accepted(gaps, graph, archived=True)
            await self._refuse_losses(log)
        return gaps

    async def _refuse_losses(self, log: AppLog) -> None:
        """Raise ``InvalidSettings`` if the new graph would lack more than the user, before anything is erased.

        Where an erasure was cut off, entries of the user are gone already: it goes on.
        """
        app_id = self._subject.app_id
        if not await log.lost_by() or (await log.erasures()).open:
            return
        await self._beside.whole.drop(app_id)
        work = Rebuild(log, self._beside, self._rules, clock=self._clock, timing=self._timing)
        await work.begin(resume=False)
        try:
            await work.refuse_losses()
        except LogLost as error:
            raise InvalidSettings(
                f"{error}, or accept the loss by `graphweft rebuild --app {app_id} --swap --accept-losses`, and give "
                "this command again. Nothing was erased"
            ) from error

    async def _check_rules(self, partitions: Sequence[int]) -> None:
        """Raise ``BusUnavailable`` if events that stay need a lost rule set, before anything is erased."""
        app_id = self._subject.app_id
        await self._rules.refresh()
        if self._subject.user_id is None or not self._live.whole.can_exchange:
            return
        log = self._archived()
        if self._beside.whole.rewrites:
            await self._check_queries(log)
        if not self._rules.lost:
            return
        for number in partitions:
            passed_over = await ledger_as_lived(log.bus, number)
            reader = RulesReader(partition=number, app_id=app_id, rules=self._rules, passed_over=passed_over)
            async for page in log.pages(number):
                try:
                    await reader.read([entry for entry in page if not self._subject.holds(entry)])
                except RulesLost as error:
                    raise BusUnavailable(f"{error}. Until then nothing is erased") from None

    async def _check_queries(self, log: AppLog) -> None:
        """Raise ``InvalidSettings`` if the graph cannot be made again here, before anything is erased."""
        try:
            await check_second_queries(self._beside, await rule_sets(log, self._rules))
        except InvalidSettings as error:
            raise InvalidSettings(f"{error}. Nothing was erased") from None

    def _archived(self) -> AppLog:
        """Return the log with the archive as it is now: an erasure writes its segments anew."""
        return replace(self._log, bus=self._judge(archived(self._alone, self._blobs)))

    async def _count(self, partitions: Sequence[int]) -> int:
        return sum([await count_entries(self._reader, number, self._subject) for number in partitions])

    async def _applied(self, ends: Mapping[int, str]) -> None:
        """Wait until the workers have applied the app's events, whatever other apps wait for."""
        behind = await self._log.until_applied(
            ends, limit_s=self._wait_s, step_s=self._timing.replay.applied_step_s, clock=self._clock
        )
        if behind:
            raise BusUnavailable(
                f"the workers have not applied all events of partition {behind[0]} within {self._wait_s:.0f} s: "
                "start them, or wait, and give the command again"
            )

    async def _on_bus(self, number: int, until: str | None = None) -> list[str]:
        return await on_the_bus(self._alone, number, self._subject, until)

    async def _off_the_bus(self, ends: Mapping[int, str], before: Mapping[int, int]) -> PlaceOfRemains:
        held: set[str] = set()
        left = 0
        for number in (each for each, count in before.items() if count):
            await self._reader.refresh(number)
            place = await trim(self._alone, self._reader, number)
            here = len(await self._on_bus(number, ends.get(number, "")))
            left += here
            if here:
                held.add(place.held_by)
        note = ""
        if held:
            note = f"readers still need them: {', '.join(sorted(held))}. Start them, and give the command again"
        return PlaceOfRemains(name="event log", found=sum(before.values()), left=left, note=note, unfinished=left > 0)

    async def _letters(self) -> AsyncGenerator[DeadLetter]:
        async for page in letter_pages(self._alone.dead_letters):
            for letter in page:
                yield letter

    async def _erase_letters(self, partitions: Sequence[int]) -> list[PlaceOfRemains]:
        """Drop what dead letters say of erased entries; other entries of a letter stay in it."""
        gone = {number: await erased_offsets(self._reader, number) for number in partitions}
        found = left = 0
        async for letter in self._letters():
            offsets = letter.entries
            erased = gone.get(letter.partition, set())
            if letter.app_id not in (None, self._subject.app_id) or not any(each in erased for each in offsets):
                if holds(self._subject, letter):  # of an event that was not on the log
                    found += 1
                    left += not await self._alone.dead_letters.requeue(letter, [])
                continue
            found += 1
            rest = tuple(each for each in offsets if each not in erased)
            left += not await self._alone.dead_letters.requeue(
                letter, [], await self._letter_of(letter, rest) if rest else None
            )
        copies = [each for each in await self._state.dead_letters() if holds(self._subject, each)]
        await self._state.forget_letters()
        await self._state.save_letters(self._alone)
        note = "they changed meanwhile: give the command again" if left else ""
        return [
            PlaceOfRemains(name="dead letters", found=found, left=left, note=note, unfinished=left > 0),
            PlaceOfRemains(name="dead letters in the archive", found=len(copies), left=0),
        ]

    async def _letter_of(self, letter: DeadLetter, offsets: tuple[str, ...]) -> DeadLetter | None:
        """Return the letter for other entries; None if none of them can be read any more."""
        there = await self._reader.entries(letter.partition, offsets)
        return letter_of_rest(letter, [entry.offset for entry in there], there[0]) if there else None

    async def _forget_skips(self) -> list[PlaceOfRemains]:
        """Remove what jobs left out of the app; they count no users."""
        if self._subject.user_id is not None:
            return []
        found = await count_skips(self._alone.usage, self._subject.app_id)
        await forget_skips(self._alone.usage, self._subject.app_id)
        left = await count_skips(self._alone.usage, self._subject.app_id)  # a worker may have written meanwhile
        note = "they changed meanwhile: give the command again" if left else ""
        return [PlaceOfRemains(name=JOB_SKIPS, found=found, left=left, note=note, unfinished=left > 0)]

    async def _snapshots(self) -> PlaceOfRemains:
        names = await self._blobs.names(f"snapshots/{self._subject.app_id}/")
        await self._blobs.delete(names)
        self._deleted += len(names)
        return PlaceOfRemains(name="snapshots", found=self._deleted, left=0)

    async def _erase_from_graph(self) -> PlaceOfRemains:
        app_id = self._subject.app_id
        found = await self._nodes()
        await self._lease.check()
        for store in self._kept:
            await store.whole.drop(app_id)
        log = self._archived()
        erasing = (await log.erasures()).count + 1  # when this one has ended
        if self._subject.user_id is None:
            await self._live.whole.drop(app_id)
            rules = logged_basis(await log.bus.rules.activations(), app_id)
            needed = GraphBasis(rules=rules, erasures=erasing)
            await put_purge(self._alone.purges, Purge(app_id=app_id, needed=needed))
            return PlaceOfRemains(name="graph", found=found, left=await self._nodes())
        if not self._live.whole.can_exchange and not await self._live.whole.graph_id(app_id):
            return PlaceOfRemains(name="graph", found=0, left=0)
        if not self._live.whole.can_exchange:
            return PlaceOfRemains(
                name="graph", found=found, left=found, unfinished=True,
                note="this server cannot put a new graph in the place of one: `graphweft rebuild --into` another "
                "server makes the graph without the user; then delete this one",
            )  # fmt: skip
        await self._beside.whole.drop(app_id)
        work = Rebuild(
            log, self._beside, self._rules, erasing=erasing, lease=self._lease, clock=self._clock, timing=self._timing
        )
        await work.begin(resume=False, swap=True)
        await work.run()
        await work.swap()
        sets = await rule_sets(log, self._rules)
        losses = await find_losses(self._beside, self._live, app_id, sets, fewer=False, ruled=labels_of(sets))
        await self._beside.whole.drop(app_id)  # the graph from before
        left = await self._nodes()
        notes = ["events that are not the user's name the user: `graphweft why` shows them"] if left else []
        notes += [f"the graph was made again from the log, without what the log does not make: {losses}"] * bool(losses)
        return PlaceOfRemains(name="graph", found=found, left=left, note=". ".join(notes), unfinished=left > 0)

    async def _nodes(self) -> int:
        return await count_nodes(self._live, self._subject)

    async def _announce(self) -> None:
        """Tell responders to drop what they cached and indexed, and jobs to drop what they are making."""
        await put_purge(self._alone.purges, Purge(app_id=self._subject.app_id, erasure=uuid4().hex))


def _together(before: Sequence[PlaceOfRemains], now: Sequence[PlaceOfRemains]) -> list[PlaceOfRemains]:
    """Return the places as they are now, with what was found in both passes."""
    found = {each.name: each.found for each in before}
    return [replace(each, found=each.found + found.get(each.name, 0)) for each in now]
