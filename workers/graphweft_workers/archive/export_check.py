"""Checks what an unpacked export says, before any of it is used: its entries are the app's, whole and in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from graphweft_contracts import DeadLetter, Layout
from graphweft_contracts.rules_log import Activation, StoredRules, digest_of
from graphweft_workers.archive import segments as format_
from graphweft_workers.archive.app_part import app_named, app_of_letter, applies_to, belongs
from graphweft_workers.archive.export_file import History, InvalidExport, UnpackedExport
from graphweft_workers.archive.segments import DamagedSegment, Segment
from graphweft_workers.archive.state import letters_of
from graphweft_workers.ports.offsets import OffsetForm, offset_order
from graphweft_workers.text.content_limits import check_values

_MOST_PARTITIONS: Final = 4_096
_MOST_LETTERS: Final = 1_000_000
"""Entries with dead letters. On the bus, the letters of one export have as many offsets."""


def check_export(export: UnpackedExport) -> None:
    """Read all of an export. Blocks. Raises ``InvalidExport`` for anything that ``graphweft export`` does not write.

    So nothing of another app is in it, and all of it can be read.
    """
    if export.manifest.histories[-1].app != export.manifest.app:
        raise InvalidExport("the export is damaged: its last history is that of another app")
    for number, history in enumerate(export.manifest.histories, 1):
        try:
            _HistoryCheck(export.folder / f"{number:04}", history).run()
        except InvalidExport:
            raise
        except Exception as error:  # whatever a hostile file makes of a decoder
            raise InvalidExport(f"the export is damaged: {type(error).__name__} in history {number}") from error


class _HistoryCheck:
    def __init__(self, folder: Path, history: History) -> None:
        self._folder = folder
        self._history = history
        self._own: dict[int, set[str]] = {}

    def run(self) -> None:
        body: Any = json.loads(_text(self._folder / "layout.json"))
        layout = Layout.of_stored(int(body["partitions"]), body["orders"])
        if not 1 <= layout.partitions <= _MOST_PARTITIONS:
            raise InvalidExport(f"the export is damaged: it has {layout.partitions:,} partitions")
        self._rules()
        own = others = 0
        by_partition: dict[int, list[Segment]] = {}
        for path in sorted(self._folder.glob("segments/*/*")):
            segment = format_.parse_name(str(path.relative_to(self._folder)))
            if segment is None:
                raise InvalidExport(f"no export of graphweft: {path.name}")
            mine, foreign = self._segment(segment, path.read_bytes())
            own, others = own + mine, others + foreign
            by_partition.setdefault(segment.partition, []).append(segment)
        for found in by_partition.values():
            _check_order(found)
        letters = self._letters()
        history = self._history
        counts = (history.entries, history.others, history.dead_letters, history.pending)
        if (own, others, letters, self._pending()) != counts:
            raise InvalidExport("the export is damaged: it does not hold as many entries as its manifest says")

    def _rules(self) -> None:
        digests: set[str] = set()
        for path in self._folder.glob("rules/sets/*"):
            if digest_of(StoredRules.decode(_text(path)).files) != path.stem:
                raise InvalidExport(f"the export is damaged: the rule set {path.stem[:12]} has another hash")
            digests.add(path.stem)
        activations = [Activation.decode(_text(path)) for path in sorted(self._folder.glob("rules/activations/*"))]
        for number, each in enumerate(activations, 1):
            places = all(offset and OffsetForm.EITHER.accepts(offset) for offset in each.positions.values())
            if each.number != number or each.digest not in digests or not places:
                raise InvalidExport(f"the export is damaged: the activation {number} of rules is not whole")
            if not applies_to(each, self._history.app):
                raise InvalidExport(f"the export holds rules of another app, {each.scope!r}")
        active = {each.digest for each in activations}
        if (active, len(digests), len(activations)) != (digests, self._history.rules, self._history.activations):
            raise InvalidExport("the export is damaged: rule sets are missing, or there are others")

    def _segment(self, segment: Segment, data: bytes) -> tuple[int, int]:
        """Check the entries of a segment; return how many are the app's, and how many are not."""
        app_id, own = self._history.app, self._own.setdefault(segment.partition, set())
        try:
            entries = format_.decode(segment, data)
        except DamagedSegment as error:
            raise InvalidExport(f"the export is hostile or damaged: {error}") from error
        for entry in entries:
            if entry.erased:
                continue
            if not belongs(entry, app_id, activations=self._history.activations):
                place = f"{segment.partition}:{entry.offset}"
                raise InvalidExport(f"the export holds an entry of another app, {app_named(entry)!r}, at {place}")
            own.add(entry.offset)
        mine = sum(not entry.erased for entry in entries)
        return mine, len(entries) - mine

    def _letters(self) -> int:
        """Check the dead letters of the log; return how many there are."""
        count = entries = 0
        for letter in self._read("letters"):
            own = self._own.get(letter.partition, ())
            strange = letter.app_id not in (None, self._history.app)
            content = bool(letter.fields) and app_of_letter(letter) not in ("", self._history.app)
            if strange or content or any(each not in own for each in letter.entries):
                raise InvalidExport(f"the export holds a dead letter of another app, {letter.id!r}")
            count, entries = count + 1, entries + len(letter.entries)
            if entries > _MOST_LETTERS:
                raise InvalidExport(f"the export has dead letters of more than {_MOST_LETTERS:,} entries")
        return count

    def _pending(self) -> int:
        count = 0
        for letter in self._read("pending"):
            if letter.app_id != self._history.app or app_of_letter(letter) != letter.app_id:
                raise InvalidExport(f"the export holds a dead letter of another app, {letter.id!r}")
            count += 1
        return count

    def _read(self, folder: str) -> Iterator[DeadLetter]:
        paths = list(self._folder.glob(f"{folder}/*"))
        if len(paths) > 1:  # only the newest one would be used
            raise InvalidExport(f"the export is damaged: {len(paths)} files in {folder}")
        for path in paths:
            yield from letters_of(path.read_bytes())


def _text(path: Path) -> bytes:
    """Return a member that is a JSON text. Raises ``TooMuch`` for one that holds too much to be parsed."""
    data = path.read_bytes()
    check_values(data)
    return data


def _check_order(segments: list[Segment]) -> None:
    number = 0
    last: tuple[int, ...] = ()
    for each in sorted(segments, key=lambda one: one.first):
        if each.first != number + 1 or offset_order(each.first_offset) <= last or each.generation:
            raise InvalidExport(f"the export is damaged: entries before {each.name} are missing, or there twice")
        number, last = each.last, offset_order(each.last_offset)
