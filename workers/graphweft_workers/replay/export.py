"""Exports one app: its log, rule sets and dead letters, in one file, with the digest of its graph.

The file is taken at a moment at which the workers have applied all events of the app, so the digest of the live graph
is that of the log in the file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from graphweft_contracts import BusUnavailable, DeadLetter, GraphUnavailable, InvalidSettings, Layout
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.app_part import AppPart, activations_of, app_of_letter
from graphweft_workers.archive.export_file import PENDING, ExportWriter, GraphState, History, Manifest
from graphweft_workers.archive.log_gaps import LogGap
from graphweft_workers.archive.preludes import came_with_prelude, is_of_prelude
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import activation_name, layout_file, letters_file, rules_name
from graphweft_workers.engine.plan.digest import Digest, read_digest
from graphweft_workers.engine.plan.graph_marks import has_plan, is_sealed
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import all_letters, letter_pages
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_basis import logged_basis, read_basis
from graphweft_workers.ports.graph_store import Checkpoint
from graphweft_workers.ports.pages import pages
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.rule_sets.lost_rule_sets import how_to_restore
from graphweft_workers.support.timing import TIMING, ReplayTiming

_MOST_ENTRIES: Final = 10_000
_MOST_BYTES: Final = 8 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """What was written."""

    manifest: Manifest
    sha256: str
    """Identifies the file: the hash of its manifest."""
    gaps: Sequence[LogGap]
    """What the file lacks, because the log does, and somebody has accepted as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """A moment at which all events of the app had taken effect."""

    ends: Mapping[int, str]
    checkpoints: Mapping[int, Checkpoint]
    digest: Digest
    letters: Sequence[DeadLetter]


class Export:
    """Writes the export of one app. The creator closes the bus and the store, which are only read."""

    def __init__(
        self, log: AppLog, *, version: str, wait_s: float = 60.0,
        tell: Callable[[str], None] = lambda _: None, clock: Clock = SYSTEM_CLOCK,
        timing: ReplayTiming = TIMING.replay,
    ) -> None:  # fmt: skip
        """``version`` of graphweft is for the manifest."""
        self._log = log
        self._live = log.live
        self._app_id = log.app_id
        self._version = version
        self._wait_s = wait_s
        self._tell = tell
        self._clock = clock
        self._timing = timing

    async def write(self, file: BinaryIO) -> ExportResult:
        """Write the export.

        Raises ``InvalidSettings`` if entries of the log are missing or the app has none, ``GraphUnavailable`` if its
        graph is from before an erasure, and ``BusUnavailable`` if the workers do not apply all events of the app within
        the time, also because there are always new ones.
        """
        gaps = await self._log.check_complete()
        preludes = await self._log.preludes()
        basis = await read_basis(self._live, self._app_id)
        if basis.rules != logged_basis(await self._log.bus.rules.activations(), self._app_id):
            raise InvalidSettings(
                f"the past of {self._app_id!r} was restated, and the live graph does not follow it yet: repeat "
                "`graphweft rebuild` with --resume --swap, then export"
            )
        if older := await self._log.older():
            raise GraphUnavailable(older)
        self._tell("wait until the events are applied")
        rest = await self._at_rest()
        self._tell("write the file")
        writer = ExportWriter(file, self._app_id)
        histories: list[History] = []
        for prelude in preludes:
            bus = prelude.bus
            reader = ArchiveReader(prelude.blobs)
            ends = {number: (await reader.end(number)).offset for number in await reader.partitions()}
            letters = [each async for page in letter_pages(bus.dead_letters) for each in page]
            source = _Source(writer, bus, prelude.app_id, len(histories) + 1)
            histories.append(await source.write(ends, letters, {}))
        source = _Source(writer, self._log.bus, self._app_id, len(histories) + 1)
        places = {number: each.offset for number, each in rest.checkpoints.items()}
        histories.append(await source.write(rest.ends, rest.letters, places))
        if not any(each.entries for each in histories):
            raise InvalidSettings(f"the log holds no event of the app {self._app_id!r}: check the name")
        state = GraphState(
            sha256=rest.digest.sha256, nodes=rest.digest.nodes, relationships=rest.digest.relationships
        )  # fmt: skip
        manifest = Manifest(
            graphweft=self._version, app=self._app_id, time=self._clock.now(), graph=state, histories=histories,
            members=writer.members,
        )  # fmt: skip
        return ExportResult(manifest=manifest, sha256=writer.finish(manifest), gaps=gaps)

    async def _at_rest(self) -> _Rest:
        until = self._clock.monotonic() + self._wait_s
        while True:
            rest = await self._look()
            if rest is not None:
                return rest
            if self._clock.monotonic() > until:
                raise BusUnavailable(
                    f"the app {self._app_id!r} was not at rest within {self._wait_s:.0f} s: start the workers, or "
                    "pause its producers for a moment, and export again"
                )
            await self._clock.sleep(self._timing.export_rest_s)

    async def _look(self) -> _Rest | None:
        """Return the state of the app if it is at rest: the same before and after the graph was read."""
        letters = await self._letters()  # their events are read once, at the end
        marks = await self._log.marks()
        ends = await self._log.done()
        if any(has_plan(each) or is_sealed(each) for each in marks.values()) or await self._log.has_events(ends):
            return None
        await self._clock.sleep(self._live.settle_s)
        digest = await read_digest(self._live, self._app_id)
        same = (
            marks == await self._log.marks()
            and letters == await self._letters()
            and not await self._log.has_events(ends)
        )
        checkpoints = {number: each for number, each in marks.items() if not is_of_prelude(number)}
        if not same:
            return None
        whole = [
            each async for page in letter_pages(self._log.bus.dead_letters) for each in page if self._may_be_of(each)
        ]
        if {each.id: each.model_copy(update={"fields": {}}) for each in whole} != letters:
            return None
        return _Rest(ends=ends, checkpoints=checkpoints, digest=digest, letters=whole)

    async def _letters(self) -> Mapping[str, DeadLetter]:
        """Return the dead letters that may be of the app by their ids, without their events."""
        found = await all_letters(self._log.bus.dead_letters)
        return {letter.id: letter for letter in found if self._may_be_of(letter)}

    def _may_be_of(self, letter: DeadLetter) -> bool:
        return letter.app_id in (None, self._app_id)


class _Source:
    """Writes one history: what one log holds of the app."""

    def __init__(self, writer: ExportWriter, bus: Bus, app_id: str, number: int) -> None:
        self._writer = writer
        self._bus = bus
        self._app_id = app_id
        self._number = number
        self._entries = self._others = 0

    async def write(
        self, ends: Mapping[int, str], letters: Sequence[DeadLetter], checkpoints: Mapping[int, str]
    ) -> History:
        """Write the log up to the offsets ``ends``, and what belongs to it."""
        layout = await self._bus.partitions.layout()  # without the names of other apps
        self._add(*layout_file(Layout(partitions=layout.partitions, order=layout.order_of(self._app_id))))
        activations = await self._bus.rules.activations()
        parts: dict[int, AppPart] = {}
        for partition, end in sorted(ends.items()):
            part = AppPart(self._app_id, activations=len(activations))
            await self._entries_of(partition, end, part)
            if part.own:
                parts[partition] = part
        own = activations_of(activations, self._app_id, parts)
        digests = {each.digest: each for each in own}
        for digest, activation in sorted(digests.items()):
            rules = await self._bus.rules.stored(digest)
            if rules is None:
                raise BusUnavailable(how_to_restore(activation))
            self._add(rules_name(digest), rules.encode())
        for activation in own:
            self._add(activation_name(activation.number), activation.encode())
        kept = [
            found for letter in letters if letter.partition in parts
            if (found := parts[letter.partition].letter(letter)) is not None
        ]  # fmt: skip
        self._add(*letters_file(kept))
        pending = [letter for letter in letters if letter.app_id == self._app_id and came_with_prelude(letter)]
        pending = [letter for letter in pending if app_of_letter(letter) == self._app_id]
        if pending:
            self._add(*letters_file(pending, folder=PENDING))
        return History(
            app=self._app_id,
            ends={number: ends[number] for number in parts},
            checkpoints={number: offset for number, offset in checkpoints.items() if number in parts},
            entries=self._entries,
            others=self._others,
            rules=len(digests),
            activations=len(own),
            dead_letters=len(kept),
            pending=len(pending),
        )

    def _add(self, name: str, data: bytes) -> None:
        self._writer.add(f"{self._number:04}/{name}", data)

    async def _entries_of(self, partition: int, end: str, part: AppPart) -> None:
        """Write the segments of a partition, from its start to the last one with an entry of the app."""
        waiting: list[tuple[str, bytes, int]] = []
        first, known = 1, 0
        async for entries in self._segments(partition, end, part):
            segment, data = await asyncio.to_thread(format_.encode, partition, first, entries)
            first += len(entries)
            waiting.append((segment.name, data, len(entries)))
            if len(part.own) == known:
                continue
            for name, packed, count in waiting:
                self._add(name, packed)
                self._others += count
            self._others -= len(part.own) - known
            self._entries += len(part.own) - known
            known = len(part.own)
            waiting = []

    async def _segments(self, partition: int, end: str, part: AppPart) -> AsyncIterator[list[Entry]]:
        pending: list[Entry] = []
        size = 0
        async for page in pages(self._bus.log, partition, to=end):
            for entry in part.of(page):
                pending.append(entry)
                size += sum(len(value) for value in entry.fields.values())
                if len(pending) >= _MOST_ENTRIES or size >= _MOST_BYTES:
                    yield pending
                    pending, size = [], 0
        if pending:
            yield pending
