"""What the archive holds beside entries: rule sets, their activations, dead letters and the layout of the bus.

Rule sets and activations are copied before a segment that may need them, so an archive alone is enough for a replay.
Dead letters change; their newest copy may be older than the newest segment.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO, Any, Final

import zstandard

from graphweft_contracts import DeadLetter, Layout
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.rules_log import Activation, StoredRules, digest_of
from graphweft_workers.archive.blobs import ArchiveUnavailable
from graphweft_workers.archive.continuation import breaks
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.archive.segments import MOST_BYTES
from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.bus import Bus
from graphweft_workers.ports.dead_letters import all_letters, letter_pages
from graphweft_workers.text.content_limits import TooMuch, zstd_lines

_RULES: Final = "rules/sets/"
_ACTIVATIONS: Final = "rules/activations/"
_LETTERS: Final = "letters/"
_LAYOUT: Final = "layout.json"
_PACKED_LETTERS: Final = 50_000
_LETTER_BYTES: Final = 16
_RATIO: Final = 32
_PART: Final = 1024**2
_COPIES: Final = 2
"""Copies of the dead letters that are kept: the newest may be damaged by a store that is not atomic."""


class ArchivedState:
    """Reads and writes the state of one archive. Every method raises ``ArchiveUnavailable``."""

    def __init__(self, blobs: BlobStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._blobs = blobs
        self._clock = clock
        self._last: Activation | None = None
        """The last one in the archive."""
        self._known: set[str] = set()
        """Digests of the rule sets that are in the archive."""
        self._letters: str = ""
        """The hash of the newest copy of the dead letters."""
        self._seen = ""
        """What the letters looked like without their events when they were copied."""
        self._layout: Layout | None = None
        self._saving = asyncio.Lock()

    async def save_rules(self, bus: Bus) -> None:
        """Copy the rule sets and activations that the archive lacks, and the layout.

        Raises ``ArchiveUnavailable`` if the last archived activation of rules is not that of the bus.
        """
        async with self._saving:
            last = await self._last_activation()
            found = await bus.rules.activations(after=0 if last is None else last.number - 1)
            if last is not None and list(found[:1]) != [last]:
                raise ArchiveUnavailable(
                    "the archive holds another log: its rules were activated at another time than those of this bus. "
                    "If the bus lost its end, run `graphweft bus mend all`; or else give it an archive of its own "
                    "(GRAPHWEFT_ARCHIVE_URL)",
                    retry_after_s=5.0,
                )
            layout = await bus.partitions.layout()
            if layout != self._layout:
                before = await self.known_layout()
                if before is not None and (lost := before.own_lost_in(layout)):
                    raise ArchiveUnavailable(
                        f"the bus has forgotten which apps have partitions of their own, as {min(lost)!r}: run "
                        "`graphweft bus mend all`",
                        retry_after_s=5.0,
                    )
                await self._blobs.put(_LAYOUT, _layout_text(layout))
                self._layout = layout
            for activation in found[last is not None :]:
                if activation.digest not in self._known:
                    rules = await bus.rules.stored(activation.digest)
                    if rules is not None:
                        await self._blobs.put(rules_name(activation.digest), rules.encode())
                    self._known.add(activation.digest)
                await self._blobs.put(activation_name(activation.number), activation.encode())
                self._last = activation

    async def _last_activation(self) -> Activation | None:
        if self._last is None and (names := await self._blobs.names(_ACTIVATIONS)):
            data = await self._blobs.get(names[-1])
            self._last = None if data is None else Activation.decode(data)
        return self._last

    async def save_letters(self, bus: Bus) -> None:
        """Copy the dead letters if they have changed. Their events, which may be gigabytes, are read in pages."""
        seen = await _fingerprint(bus)
        if seen == self._seen:
            return
        reader = ArchiveReader(self._blobs)
        archived = await reader.partitions()  # one listing for all
        if archived and await breaks(bus, reader, archived):
            return  # the copies that are there may have what the bus lost; `bus mend` reads them
        with tempfile.TemporaryFile() as lines:
            digest = hashlib.sha256()
            async for page in letter_pages(bus.dead_letters):
                for letter in page:
                    line = f"{letter.model_dump_json(exclude_none=True)}\n".encode()
                    digest.update(line)
                    lines.write(line)
            before = await self._blobs.names(_LETTERS)
            name = _letters_name(_LETTERS, digest.hexdigest(), self._clock, after=before[-1] if before else "")
            kept: str = name.rpartition("_")[2]
            if kept != self._letters:
                await self._blobs.put(name, await asyncio.to_thread(_compressed, lines))
                await self._blobs.delete((await self._blobs.names(_LETTERS))[:-_COPIES])
        self._letters, self._seen = kept, seen

    async def layout(self) -> Layout:
        """Return the layout of the bus that was archived."""
        layout = await self.known_layout()
        if layout is None:
            raise ArchiveUnavailable("the archive is empty: nothing was archived yet (`graphweft run archive`)")
        return layout

    async def known_layout(self) -> Layout | None:
        """Return the layout of the bus that was archived; None if nothing was archived yet."""
        data = await self._blobs.get(_LAYOUT)
        if data is None:
            return None
        body: Any = json.loads(data)
        return Layout.of_stored(int(body["partitions"]), body["orders"])

    async def stored_rules(self, digest: str) -> StoredRules | None:
        """Return a rule set without its summary; None if the archive does not hold it.

        Raises ``ValueError`` if it is damaged. Nothing that was derived from its files is believed.
        """
        data = await self._blobs.get(rules_name(digest))
        if data is None:
            return None
        stored = StoredRules.decode(data)
        if digest_of(stored.files) != digest:
            raise ValueError("the rule set has another hash")
        return replace(stored, summary=None)

    async def activations(self, *, after: int = 0) -> Sequence[Activation]:
        """Return the activations with a number above ``after``, in order."""
        names = await self._blobs.names(_ACTIVATIONS)
        found: list[Activation] = []
        for name in names[after:]:
            data = await self._blobs.get(name)
            if data is not None:
                found.append(Activation.decode(data))
        return found

    async def dead_letters(self, *, folder: str = _LETTERS) -> Sequence[DeadLetter]:
        """Return the dead letters of the newest copy that is whole, oldest first."""
        for name in reversed(await self._blobs.names(folder)):
            data = await self._blobs.get(name)
            try:
                letters = list(letters_of(data or b""))
            except zstandard.ZstdError:
                continue
            except TooMuch as error:
                raise ArchiveUnavailable(f"the archive is damaged: {name}: {error}") from error
            return sorted(letters, key=lambda letter: (letter.time, letter.id))
        return []

    async def replace_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Keep these dead letters and no others, for an archive without a bus."""
        name, data = letters_file(letters, clock=self._clock)
        before = await self._blobs.names(_LETTERS)
        await self._blobs.put(name, data)
        await self._blobs.delete([each for each in before if each != name])

    async def forget_letters(self) -> None:
        """Delete all copies of the dead letters, before a new one is made without erased ones."""
        self._letters = self._seen = ""
        await self._blobs.delete(await self._blobs.names(_LETTERS))


def letters_of(data: bytes) -> Iterator[DeadLetter]:
    """Yield the dead letters of a copy, as they are unpacked.

    Raises ``TooMuch``, ``zstandard.ZstdError``, and ``ValueError`` for what is no dead letter.
    """
    if not data:
        raise zstandard.ZstdError("the copy is empty")
    # No letter packs to a few bytes: its position and its event's id are its own.
    most = _PACKED_LETTERS + len(data) // _LETTER_BYTES
    lines = zstd_lines(data, most_bytes=max(MOST_BYTES, _RATIO * len(data)), most_lines=most)
    return (DeadLetter.model_validate_json(line) for line in lines)


def letters_file(
    letters: Sequence[DeadLetter], *, folder: str = _LETTERS, clock: Clock = SYSTEM_CLOCK
) -> tuple[str, bytes]:
    """Return the name and the bytes of a copy of dead letters. The end of the name says what they are."""
    lines = sorted(letter.model_dump_json(exclude_none=True) for letter in letters)
    text = "".join(f"{line}\n" for line in lines).encode()
    data = zstandard.ZstdCompressor(write_checksum=True).compress(text)
    return _letters_name(folder, hashlib.sha256(text).hexdigest(), clock), data


def _letters_name(folder: str, digest: str, clock: Clock, *, after: str = "") -> str:
    """Return a name behind that of the newest copy, which a clock may have given that was ahead."""
    number = after.removeprefix(folder).partition("_")[0]
    least = int(number) + 1 if number.isdecimal() else 0
    return f"{folder}{max(int(clock.now().timestamp() * 1000), least):014}_{digest[:20]}.jsonl.zst"


async def _fingerprint(bus: Bus) -> str:
    """Return a hash that changes with the dead letters, without reading their events."""
    digest = hashlib.sha256(repr(sorted((await bus.dead_letters.by_app()).items())).encode())
    for letter in await all_letters(bus.dead_letters):
        digest.update(letter.model_dump_json(exclude_none=True).encode())
    return digest.hexdigest()


def _compressed(file: IO[bytes]) -> bytes:
    """Return the content of a file, compressed with its size in front: readers ask for that."""
    size = file.tell()
    file.seek(0)
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj(size=size)
    parts = [packer.compress(part) for part in iter(lambda: file.read(_PART), b"")]
    return b"".join([*parts, packer.flush()])


def rules_name(digest: str) -> str:
    """Return the name of a rule set."""
    return f"{_RULES}{digest}.json"


def activation_name(number: int) -> str:
    """Return the name of an activation."""
    return f"{_ACTIVATIONS}{number:08}.json"


def layout_file(layout: Layout) -> tuple[str, bytes]:
    """Return the name and the bytes of the layout."""
    return _LAYOUT, _layout_text(layout)


def _layout_text(layout: Layout) -> bytes:
    return json.dumps({"partitions": layout.partitions, "orders": layout.orders()}, sort_keys=True).encode()
