"""Restores an exported app: makes its graph from the file, proves the digest, and keeps the history in the archive.

The history is a prelude of the app, see ``archive.preludes``: it is replayed before the events on the bus, and never
reaches the bus, so no worker and no job applies it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from graphweft_contracts import DeadLetter, GraphUnavailable, InvalidEvent, InvalidSettings, wire
from graphweft_contracts.plurals import counted
from graphweft_contracts.rules_log import SHARED_RULES, StoredRules, active_for
from graphweft_rules import RuleSet
from graphweft_workers.archive import preludes
from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.export_file import PENDING, InvalidExport, UnpackedExport
from graphweft_workers.archive.preludes import Prelude
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.engine.log.read import row_id
from graphweft_workers.engine.plan.digest import Digest, read_digest
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import all_letters, put_letters
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_basis import write_basis
from graphweft_workers.ports.graph_store import GraphStore
from graphweft_workers.ports.purges import needed_basis
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.graphs_lease import GraphsLease
from graphweft_workers.replay.histories import replay_preludes
from graphweft_workers.replay.replay import ReplayStep
from graphweft_workers.rule_sets.active_rules import ActiveRules
from graphweft_workers.support.timing import TIMING


class GraphDiffers(GraphUnavailable):
    """The graph that the file gives is not the one that was exported. It was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """What was restored."""

    events: int
    """Events that have mutations."""
    digest: Digest
    dead_letters: int = 0
    """Dead letters that are on the bus now."""
    rules: int = 0
    """Rule sets that were activated for the app."""


class Restore:
    """Restores one app. The creator closes ``graph`` and ``bus``."""

    def __init__(
        self, export: UnpackedExport, graph: GraphStore, rules: ActiveRules, app_id: str, *,
        make: Callable[[StoredRules], RuleSet], tell: Callable[[Mapping[int, ReplayStep]], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """``export`` has been checked. ``app_id`` may be another one than in the export.

        ``rules`` are made by ``make``; which ones are active comes from the export.
        """
        self._export = export
        self._graph = graph
        self._rules = rules
        self._app_id = app_id
        self._make = make
        self._tell = tell
        self._sets: dict[str, RuleSet] = {}
        """By digest: the rule sets of the export, all of which compile."""
        self._stored: dict[str, StoredRules] = {}
        """By digest: as they are stored, with summaries that are made of their files."""
        self._histories = [
            Prelude(
                number=number,
                app_id=each.app,
                blobs=open_blobs(str(export.folder / f"{number:04}")),
                restored=export.manifest.time,
            )
            for number, each in enumerate(export.manifest.histories, 1)
        ]

    async def check_rules(self) -> None:
        """Compile all workflows of all rule sets. Raises ``InvalidExport`` if one cannot be compiled."""
        for history in self._histories:
            for activation in await history.bus.rules.activations():
                digest = activation.digest
                stored = await history.bus.rules.stored(digest)
                if digest in self._sets or stored is None:
                    continue
                self._sets[digest] = rules = await asyncio.to_thread(self._make, stored)
                for name in rules.workflows:
                    if (problem := await asyncio.to_thread(rules.problem, name)) is not None:
                        raise InvalidExport(
                            f"the export holds rules that this version cannot use: the workflow {name!r} of the rule "
                            f"set {digest[:12]} does not compile: {problem}"
                        )
                self._stored[digest] = replace(stored, summary=await asyncio.to_thread(_summary, rules))

    async def check_graph(self) -> None:
        """Raise ``InvalidSettings`` if the place of the graph holds one."""
        marks = await self._graph.checkpoints(self._app_id, timeout_s=TIMING.replay.query_s)
        if marks or await _has_nodes(self._graph, self._app_id):
            raise InvalidSettings(
                f"a graph of {self._app_id!r} exists: delete it with `graphweft erase`, give --as for another name of "
                "the app, or restore on another deployment"
            )

    async def check(self, bus: Bus, blobs: BlobStore) -> None:
        """Raise ``InvalidSettings`` if the app has a graph, a restored history or events. Nothing is changed.

        What an interrupted restore has left is no reason. Raises like ``check_rules``, too.
        """
        await self.check_rules()
        app_id = self._app_id
        if await preludes.preludes_in(blobs, app_id):
            raise InvalidSettings(
                f"{app_id!r} was restored before: its history is in the archive. `graphweft erase` removes the app; "
                "--as restores it under another name"
            )
        if await self._has_events(bus):
            raise InvalidSettings(
                f"the log already holds events of {app_id!r}, and those of the export would come after them: remove "
                "the app with `graphweft erase`, or restore under another name with --as"
            )
        if not await preludes.is_unfinished(blobs, app_id):
            await self.check_graph()

    async def _has_events(self, bus: Bus) -> bool:
        return await AppLog(bus=bus, app_id=self._app_id, live=self._graph).has_events()

    async def _check_alone(self, bus: Bus) -> None:
        if await self._has_events(bus):
            raise InvalidSettings(
                f"events of {self._app_id!r} arrived while it was restored: stop its producers, remove them with "
                "`graphweft erase`, and restore again"
            )

    async def run(self, bus: Bus, blobs: BlobStore) -> RestoreResult:
        """Restore the graph, the history, the dead letters and the rules. After an interruption, a further call does.

        ``bus`` has the archive ``blobs`` behind it. Raises like ``check``, ``GraphDiffers``, and ``InvalidSettings`` if
        events of the app arrive meanwhile; then nothing of the app is left but these events.
        """
        lease = GraphsLease.of(replace(bus, archive=blobs), self._app_id, "graphweft restore")
        async with lease.held():
            return await self._run(bus, blobs, lease)

    async def _run(self, bus: Bus, blobs: BlobStore, lease: GraphsLease) -> RestoreResult:
        await self.check(bus, blobs)
        await preludes.begin(blobs, self._app_id, self._export.sha256)
        await self._graph.whole.drop(self._app_id)
        done = False
        try:
            try:
                restored = await self.run_graph()
            except GraphDiffers:
                await self._check_alone(bus)  # they may be the reason
                raise
            await self._write_basis(bus)
            for history in self._histories:
                target = blobs.below(preludes.folder_of(self._app_id, history.number))
                for name in await history.blobs.names(""):
                    if not name.startswith(PENDING):  # these go to the bus
                        await target.put(name, await history.blobs.get(name) or b"")
            letters = await self._letters(bus)
            await self._check_alone(bus)
            rules = await self._activate(bus)
            await put_letters(bus.dead_letters, letters)
            apps = [each.app_id for each in self._histories]
            await preludes.finish(blobs, self._app_id, self._export.sha256, apps)
            done = True
        finally:
            if not done:
                await asyncio.shield(self._undo(blobs, lease))
        return RestoreResult(events=restored.events, digest=restored.digest, dead_letters=len(letters), rules=rules)

    async def _write_basis(self, bus: Bus) -> None:
        """Let the graph say that it is from after all that was erased from an app of this name, or restated."""
        needed = await needed_basis(bus.purges, self._app_id)
        if needed is not None:
            made = await self._graph.checkpoints(self._app_id, timeout_s=TIMING.replay.query_s)
            await write_basis(self._graph, self._app_id, min(made, default=0), needed)

    async def _undo(self, blobs: BlobStore, lease: GraphsLease) -> None:
        await lease.check()  # what is there may be of the command that has taken over
        await self._graph.whole.drop(self._app_id)
        await preludes.remove(blobs, self._app_id)

    async def run_graph(self) -> RestoreResult:
        """Make the graph alone, in an empty place.

        Raises ``GraphDiffers`` if it is not the exported one, and like ``check_rules``.
        """
        await self.check_rules()
        run = await self._graph.check()
        steps: dict[int, ReplayStep] = {}
        replay = replay_preludes(self._histories, self._graph, self._rules, self._app_id)
        async with contextlib.aclosing(replay):
            async for number, step in replay:
                steps[number] = step
                self._tell(steps)
        await self._graph.durable(run)
        await asyncio.sleep(self._graph.settle_s)
        found, expected = await read_digest(self._graph, self._app_id), self._export.manifest.graph
        if (found.sha256, found.nodes, found.relationships) != (
            expected.sha256, expected.nodes, expected.relationships,
        ):  # fmt: skip
            await self._graph.whole.drop(self._app_id)
            failed = sum(len(each.letters) for each in steps.values())
            raise GraphDiffers(
                "the graph of the export differs from the one that was exported, and was deleted: "
                f"{counted(found.nodes, 'node')} and {counted(found.relationships, 'relationship')} instead of "
                f"{expected.nodes:,} and {expected.relationships:,}; {counted(failed, 'mutation')} failed. The export "
                f"was written by graphweft {self._export.manifest.graphweft}: use that version and the same kind of "
                "graph server. If `graphweft rebuild --verify` finds a difference where it was exported, something "
                "else than the rules had written to that graph"
            )
        return RestoreResult(events=sum(each.events for each in steps.values()), digest=found)

    async def _activate(self, bus: Bus) -> int:
        """Activate the rule sets of the export for the app, the one that was active last; return how many.

        All of them: workers take into account what earlier rules may have written. None, if the bus knows them all and
        the same one is active. A rule set that the bus has stays as it is, because other apps may use it.
        """
        digests: list[str] = []
        for history in self._histories:
            activations = await history.bus.rules.activations()
            digests += [each.digest for each in activations if each.digest != SHARED_RULES]
            last = active_for(activations, history.app_id)
            digests += [last.digest] if last else []
        if not digests:
            return 0
        there = await bus.rules.activations()
        active = active_for(there, self._app_id)
        if {*digests} <= {each.digest for each in there} and active and active.digest == digests[-1]:
            return 0
        order = [each for at, each in enumerate(digests) if each not in digests[at + 1 :]]
        for digest in order:
            if await bus.rules.stored(digest) is None:
                await bus.rules.store(digest, self._stored[digest])
            await bus.rules.activate(self._app_id, digest)
        return len(order)

    async def _letters(self, bus: Bus) -> list[DeadLetter]:
        """Return the dead letters for the bus: one for each entry, at a place where no entry is."""
        layout = await bus.partitions.layout()
        letters: list[DeadLetter] = []
        async for letter, entry in self._pending():
            renamed = _renamed(entry, self._export.manifest.app, self._app_id)
            if renamed is not None:
                fields, key = renamed
                offset = bus.offsets.write(preludes.free_offset(self._app_id, self._export.sha256, len(letters)))
                letters.append(_at(letter, layout.partition_of(key), offset, fields, self._app_id))
        return letters

    async def _pending(self) -> AsyncIterator[tuple[DeadLetter, Entry]]:
        """Yield what was neither retried nor dropped: of the last history, and what came to it with earlier ones."""
        last = self._histories[-1]
        for letter in await ArchivedState(last.blobs).dead_letters(folder=PENDING):
            yield letter, Entry(offset=letter.offset, fields=wire.unpack(letter.fields), received=letter.time)
        alone = last.bus
        for letter in await all_letters(alone.dead_letters):
            for entry in await alone.log.entries(letter.partition, letter.entries):
                yield letter, entry


def _renamed(entry: Entry, before: str, app_id: str) -> tuple[dict[bytes, bytes], str] | None:
    """Return the fields of an entry as an event of ``app_id``, and its key; None for no event that gets a new name."""
    fields = {**entry.fields, **wire.recording(entry.fields, entry.received)}  # retries are as old
    try:
        event = wire.decode(fields, received=entry.received)
    except InvalidEvent:
        return (fields, f"{app_id}/") if before == app_id else None
    if before != app_id:
        event = event.model_copy(update={"appid": app_id})
        kept = {name: value for name, value in fields.items() if name in (wire.RETRY, wire.RECORDED)}
        fields = {**wire.encode(event), **kept}
    return fields, event.key


def _at(letter: DeadLetter, partition: int, offset: str, fields: Mapping[bytes, bytes], app_id: str) -> DeadLetter:
    """Return the dead letter of one entry, at another place."""
    kept = {name: value for name, value in fields.items() if letter.rule is None or name != wire.RETRY}
    return letter.model_copy(
        update={
            "id": row_id(partition, offset, letter.rule, letter.mutation),
            "position": f"{partition}:{offset}",
            "offsets": (),
            "count": 1,
            "app_id": app_id if letter.app_id else None,
            "fields": wire.pack(kept),
        }
    )


def _summary(rules: RuleSet) -> Any:
    return rules.summary.to_json()


async def _has_nodes(graph: GraphStore, app_id: str) -> bool:
    async for _ in graph.whole.nodes(app_id):
        return True
    return False
