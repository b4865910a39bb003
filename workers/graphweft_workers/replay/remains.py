"""Where data of a user, or of an app, is now: in each place that ``graphweft`` knows. Nothing is changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from graphweft_contracts import DeadLetter, wire
from graphweft_contracts.plurals import counted
from graphweft_workers.archive.erasure import count_entries, learn
from graphweft_workers.archive.erasures import erasures_in
from graphweft_workers.archive.prelude_erasure import count_restored, learn_restored
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.state import ArchivedState
from graphweft_workers.archive.subject import Subject
from graphweft_workers.engine.usage.waits import count_skips
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import letter_pages
from graphweft_workers.ports.event_log import Entry
from graphweft_workers.ports.graph_store import GraphStore, Node
from graphweft_workers.ports.offsets import is_after
from graphweft_workers.ports.pages import pages
from graphweft_workers.ports.purges import purges_after
from graphweft_workers.replay.app_log import AppLog
from graphweft_workers.replay.snapshot_file import InvalidSnapshot, read_snapshot
from graphweft_workers.retrieval.records import (
    ENTITY,
    EPISODE,
    FACT,
    MEMORY_LABEL,
    PREFERENCE,
    PROFILE,
    RELATION,
    STATEMENT,
    SUMMARY,
    VERSION,
)

_MARK: Final = frozenset({"id", "user_id", "erased_before", "erased_elsewhere"})
"""Properties of a profile that says only that its user was erased."""
_OF_MEMORY: Final = frozenset(
    {MEMORY_LABEL, VERSION, STATEMENT, SUMMARY, FACT, PREFERENCE, PROFILE, EPISODE, ENTITY, RELATION, "Attribute"}
)
_FORGETS: Final = "graphweft memory erase"
_ERASES: Final = "graphweft erase"
JOB_SKIPS: Final = "what jobs left out"
"""The place of their counts."""
_REBUILDS: Final = "graphweft rebuild --into another server, after graphweft erase"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOfRemains:
    """One place that held data of the subject, and what is left there."""

    name: str
    found: int
    """Entries, dead letters, files or nodes that were there."""
    left: int
    note: str = ""
    """What a person has to know, or to do."""
    unfinished: bool = False
    """Whether data is left that has to go."""
    removed_by: str = ""
    """The command that removes what is left."""


class Remains:
    """Looks for one subject. The creator closes the bus and the stores."""

    def __init__(
        self, alone: Bus, blobs: BlobStore | None, live: GraphStore, subject: Subject, kept: Sequence[GraphStore] = ()
    ) -> None:
        """``alone`` is the bus without the archive; ``kept`` are stores of graphs beside the live one."""
        self._alone = alone
        self._blobs = blobs
        self._live = live
        self._subject = subject
        self._kept = kept

    async def places(self) -> list[PlaceOfRemains]:
        """Return all places. Raises ``BusUnavailable``, ``GraphUnavailable`` and ``ArchiveUnavailable``."""
        partitions = await AppLog(bus=self._alone, live=self._live, app_id=self._subject.app_id).partitions()
        await learn_all(self._alone, self._blobs, partitions, self._subject)
        on_bus = sum([len(await on_the_bus(self._alone, number, self._subject)) for number in partitions])
        letters = 0
        async for page in letter_pages(self._alone.dead_letters):
            letters += sum(holds(self._subject, each) for each in page)
        graph = of_rules = 0
        async for node in nodes_of(self._live, self._subject):
            graph += 1
            of_rules += _OF_MEMORY.isdisjoint(node.labels)
        beside = sum([await count_nodes(each, self._subject) for each in self._kept])
        found = [
            _place("graph", graph, by=self._by(graph, of_rules)),
            _place("graphs beside it", beside, by=f"{_ERASES}, graphweft rebuild --drop"),
            *await self._of_responders(),
            _place("dead letters", letters, by=f"{_ERASES}, graphweft dlq drop"),
            _place("event log", on_bus, by=_ERASES),
        ]
        if self._subject.user_id is None:
            found.append(_place(JOB_SKIPS, await count_skips(self._alone.usage, self._subject.app_id), by=_ERASES))
        return found if self._blobs is None else found + await self._archived(self._blobs, partitions)

    def _by(self, nodes: int, of_rules: int) -> str:
        """Return what removes nodes of the graph: the command for memories leaves nodes of rules."""
        can_erase = self._subject.user_id is None or self._live.whole.can_exchange
        erases = _ERASES if can_erase else _REBUILDS
        if self._subject.user_id is None or nodes == of_rules:
            return erases
        return _FORGETS if not of_rules else f"{_FORGETS}; {counted(of_rules, 'node')} of rules: {erases}"

    async def _of_responders(self) -> list[PlaceOfRemains]:
        """Responders cannot be asked; they read the announcements before they serve what the graph did not confirm."""
        announced = any(
            each.app_id == self._subject.app_id for each in (await purges_after(self._alone.purges, None)).found
        )
        note = "announced to all responders" if announced else "no erasure of the app was announced yet"
        return [
            PlaceOfRemains(name=name, found=0, left=0, note=note) for name in ("responder caches", "responder indexes")
        ]

    async def _archived(self, blobs: BlobStore, partitions: Sequence[int]) -> list[PlaceOfRemains]:
        reader = ArchiveReader(blobs)
        archived = sum([await count_entries(reader, number, self._subject) for number in partitions])
        copies = [each for each in await ArchivedState(blobs).dead_letters() if holds(self._subject, each)]
        restored = await count_restored(blobs, self._subject)
        snapshots = await snapshots_of(blobs, self._subject)
        cut_off = (await erasures_in(blobs, self._subject.app_id)).open or ()
        return [
            _place("archive", archived, by=_ERASES),
            _place("dead letters in the archive", len(copies), by=_ERASES),
            _place("restored history", restored, by=_ERASES),
            _place("snapshots", len(snapshots), by=_ERASES),
            _place("erasures that were cut off", len(cut_off), by=_ERASES),
        ]


def _place(name: str, found: int, *, by: str) -> PlaceOfRemains:
    return PlaceOfRemains(name=name, found=found, left=found, removed_by=by if found else "")


async def learn_all(bus: Bus, blobs: BlobStore | None, partitions: Sequence[int], subject: Subject) -> None:
    """Let a subject see archive and bus: chats and memories tell which events are the user's."""
    if blobs is not None:
        await learn_restored(blobs, subject)
    for number in partitions:
        if blobs is not None:
            await learn(ArchiveReader(blobs), number, subject)
        async for page in pages(bus.log, number):
            subject.learn(page)


async def on_the_bus(bus: Bus, number: int, subject: Subject, until: str | None = None) -> list[str]:
    """Return the offsets of the subject's entries on the bus, up to an offset."""
    found: list[str] = []
    async for page in pages(bus.log, number):
        found += [
            entry.offset
            for entry in page
            if subject.holds(entry) and (until is None or not is_after(entry.offset, until))
        ]
    return found


async def count_nodes(graph: GraphStore, subject: Subject) -> int:
    """Count the nodes of ``nodes_of``."""
    return sum([1 async for _ in nodes_of(graph, subject)])


async def nodes_of(graph: GraphStore, subject: Subject) -> AsyncIterator[Node]:
    """Yield the nodes that have the user's id as a value; for an app, all of its graph's.

    The mark that a user was erased does not count: it keeps late events of the user out.
    """
    async for node in graph.whole.nodes(subject.app_id):
        if node.is_internal:
            continue
        if subject.user_id is None or (subject.user_id in node.properties.values() and not _is_mark(node)):
            yield node


def _is_mark(node: Node) -> bool:
    return "erased_before" in node.properties and node.properties.keys() <= _MARK


async def snapshots_of(blobs: BlobStore, subject: Subject) -> list[str]:
    """Return the names of the app's snapshots that have the user's id in them; all of them for an app."""
    names = await blobs.names(f"snapshots/{subject.app_id}/")
    user = subject.user_id
    if user is None:
        return names
    found: list[str] = []
    for name in names:
        data = await blobs.get(name)
        if data is not None and await asyncio.to_thread(_names_user, data, user):
            found.append(name)
    return found


def _names_user(data: bytes, user: str) -> bool:
    """Tell whether a snapshot has a user's id as a value; one that cannot be read may have it."""
    spelled = {json.dumps(user).encode(), json.dumps(user, ensure_ascii=False).encode()}
    try:
        return any(each in line for line in read_snapshot(data)[1] for each in spelled)
    except (InvalidSnapshot, ValueError, KeyError, TypeError):
        return True


def holds(subject: Subject, letter: DeadLetter) -> bool:
    """Tell whether a dead letter holds an entry of the subject."""
    return subject.holds(Entry(offset=letter.offset, fields=wire.unpack(letter.fields), received=letter.time))
