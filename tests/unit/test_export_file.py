"""A file of an export is refused unless it is whole and holds one app; nothing is written outside its folder."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard

from graphweft_contracts import DeadLetter, Event, Layout, wire
from graphweft_contracts.rules_log import Activation, StoredRules, digest_of
from graphweft_workers.archive import export_file, segments
from graphweft_workers.archive.app_part import AppPart
from graphweft_workers.archive.export_check import check_export
from graphweft_workers.archive.export_file import (
    ExportWriter,
    GraphState,
    History,
    InvalidExport,
    Manifest,
    UnpackedExport,
)
from graphweft_workers.archive.state import activation_name, layout_file, letters_file, rules_name
from graphweft_workers.ports.event_log import Entry

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FILES = {"Shop/graph_injection.yaml": b"version: '1.0'"}
RULES = digest_of(FILES)
OTHER_FILES = {"Shop/graph_injection.yaml": b"version: '2.0'"}
OTHER = digest_of(OTHER_FILES)

DROPPED = wire.DroppedLetter("other", None, None, ("1-0",), "skipped").encode()

type Change = Callable[[dict[str, Any]], None]


def entry(number: int, app: str = "shop", **more: bytes) -> Entry:
    event = Event.create("order.placed", app_id=app, chat_id="c", id=f"e{number}", source="/t", data={})
    fields = wire.encode(event) | {name.encode(): value for name, value in more.items()}
    return Entry(offset=f"{number}-0", fields=fields, received=NOW)


def empty(number: int) -> Entry:
    return Entry(offset=f"{number}-0", fields={}, received=NOW, erased=True)


def export(change: Change = lambda _: None) -> bytes:
    """Return a file of two segments, of which ``change`` changes the parts before they are written."""
    letter = DeadLetter(
        id="0:1-0", reason="skipped", message="m", position="0:1-0", time=NOW, app_id="shop", rule="r", mutation="m",
        fields={},
    )  # fmt: skip
    parts: dict[str, Any] = {
        "entries": [[entry(1), empty(2)], [entry(3)]],
        "letters": [letter],
        "scope": "shop",
        "files": FILES,
        "extra": {},
        "about": {},
        "manifest": {},
        "counts": {},
        "first": [1, 3],
        "partitions": 1,
        "offset": "1-0",
    }
    change(parts)
    file = io.BytesIO()
    writer = ExportWriter(file, "shop")
    file.seek(0)
    file.truncate()
    about = {"format": "graphweft-export", "version": 1, "app": "shop"} | parts["about"]
    writer._append("about.json", json.dumps(about).encode())
    members = dict([layout_file(Layout(partitions=parts["partitions"]))])
    for first, entries in zip(parts["first"], parts["entries"], strict=True):
        segment, data = segments.encode(0, first, entries)
        members[segment.name] = data
    members[rules_name(RULES)] = StoredRules(files=parts["files"]).encode()
    activation = Activation(number=1, scope=parts["scope"], digest=RULES, time=NOW, positions={0: parts["offset"]})
    members[activation_name(1)] = activation.encode()
    if parts["letters"] is not None:
        members |= dict([letters_file(parts["letters"])])
    for name, data in members.items():
        writer.add(f"0001/{name}", data)
    for name, data in parts["extra"].items():
        writer.add(name, data)
    everything = [each for some in parts["entries"] for each in some]
    own = sum(not each.erased for each in everything)
    history = {
        "app": "shop", "ends": {0: "3-0"}, "checkpoints": {0: "3-0"}, "entries": own, "others": len(everything) - own,
        "rules": 1, "activations": 1, "dead_letters": len(parts["letters"] or ()),
    } | parts["counts"]  # fmt: skip
    graph = GraphState(sha256="0" * 64, nodes=0, relationships=0)
    manifest = {
        "graphweft": "1", "app": "shop", "time": NOW, "graph": graph, "histories": [History(**history)],
        "members": writer.members,
    }  # fmt: skip
    writer.finish(Manifest.model_construct(**manifest | parts["manifest"]))
    return file.getvalue()


def opened(data: bytes, folder: Path) -> UnpackedExport:
    found = UnpackedExport.unpack(io.BytesIO(data), folder)
    check_export(found)
    return found


def test_a_whole_file_is_read_and_is_a_tar(tmp_path: Path) -> None:
    data = export()
    found = opened(data, tmp_path)
    assert sorted(path.name for path in (found.folder / "0001").iterdir()) == [
        "layout.json", "letters", "rules", "segments",
    ]  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames()[0] == "about.json"
        assert tar.getnames()[-1] == "manifest.json"


def _set(name: str, value: Any) -> Change:
    return lambda parts: parts.__setitem__(name, value)


def _letter(**changes: Any) -> Change:
    return lambda parts: parts.__setitem__("letters", [parts["letters"][0].model_copy(update=changes)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("entries", [[entry(1), entry(2, "other")], [entry(3)]]), "an entry of another app, 'other'"),
        (_set("entries", [[entry(1), entry(2, gw_dropped=DROPPED)], [entry(3)]]), "an entry of another app"),
        (_set("entries", [[entry(2), entry(1)], [entry(3)]]), "not in order"),
        (_set("entries", [[entry(1), empty(4)], [entry(3)]]), "missing, or there twice"),
        (_set("first", [1, 4]), "missing, or there twice"),
        (_set("first", [1, 2]), "missing, or there twice"),
        (_set("scope", "other"), "rules of another app"),
        (_set("files", {"a.yaml": b"other"}), "has another hash"),
        (_letter(app_id="other"), "a dead letter of another app"),
        (_letter(position="0:2-0"), "a dead letter of another app"),
        (_letter(position="1:1-0"), "a dead letter of another app"),
        (_set("counts", {"entries": 9}), "as many entries"),
        (_set("counts", {"app": "other"}), "another app"),
        (_set("counts", {"rules": 2}), "rule sets are missing"),
        (_set("about", {"version": 2}), "reads 1"),
        (_set("about", {"format": "x"}), "no export of graphweft"),
        (_set("manifest", {"version": 7}), "reads 1"),
        (_set("manifest", {"app": "../x"}), "manifest of the export is invalid"),
        (_set("manifest", {"members": []}), "not those that its manifest lists"),
        (_set("extra", {"0001/../../evil": b"x"}), "0001/../../evil"),
        (_set("extra", {"/etc/evil": b"x"}), "/etc/evil"),
        (_set("extra", {"0002/layout.json": b"x"}), "0002/layout.json"),
        (_set("extra", {"0001/rules/sets/x.json": b"x"}), "0001/rules/sets/x.json"),
        (_set("extra", {"0001/layout.json": b"x"}), "one name"),
        (_set("extra", {f"0001/rules/sets/{OTHER}.json": StoredRules(files=OTHER_FILES).encode()}), "there are others"),
        (_set("extra", dict([letters_file([], folder="0001/letters/")])), "2 files in letters"),
        (_set("partitions", 10**9), "it has 1,000,000,000 partitions"),
        (_set("partitions", 0), "it has 0 partitions"),
        (_set("offset", ""), "is not whole"),
        (_set("offset", "first"), "is not whole"),
        (_set("offset", "9" * 5_000), "is not whole"),
        (_letter(fields=wire.pack(entry(1, "other").fields)), "a dead letter of another app"),
        (_set("extra", {"0001/letters/00000000000001_00000000000000000000.jsonl.zst": b"x"}), "damaged"),
    ],
)  # fmt: skip
def test_what_no_export_writes_is_refused(change: Change, said: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidExport, match=said.replace(".", r"\.")):
        opened(export(change), folder)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("kind", ["symlink", "hardlink", "device", "longname", "pax", "huge", "named", "traversal"])
def test_other_members_of_a_tar_are_refused(kind: str, tmp_path: Path) -> None:
    about = export()[:1024]
    info = tarfile.TarInfo("000001")
    info.type = {
        "symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE, "device": tarfile.CHRTYPE,
        "longname": tarfile.GNUTYPE_LONGNAME, "pax": tarfile.XHDTYPE,
    }.get(kind, tarfile.REGTYPE)  # fmt: skip
    info.linkname = "/etc/passwd" if kind in ("symlink", "hardlink") else ""
    info.name = {"named": "evil", "traversal": "../evil"}.get(kind, info.name)
    info.size = 2**40 if kind == "huge" else 0
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(InvalidExport):
        opened(about + info.tobuf(tarfile.GNU_FORMAT) + bytes(2048), folder)
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]
    assert [*(folder / "members").iterdir()] == []


def test_each_cut_and_each_changed_byte_is_found(tmp_path: Path) -> None:
    data = export()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getmembers()
    ends = [each.offset_data for each in names] + [each.offset_data + each.size - 1 for each in names]
    for number, at in enumerate(ends):
        for cut in (True, False):
            damaged = data[:at] if cut else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
            folder = tmp_path / f"{number}{cut}"
            folder.mkdir()
            if cut:
                with pytest.raises(InvalidExport):
                    opened(damaged, folder)
                continue
            try:
                found = opened(damaged, folder)
            except InvalidExport:
                continue
            assert names[number % len(names)].name in ("about.json", "manifest.json"), found  # white space
    for junk in (b"", b"x", bytes(4096), zstandard.compress(b"x")):
        folder = tmp_path / f"junk{len(junk)}{junk[:1].hex()}"
        folder.mkdir()
        with pytest.raises(InvalidExport):
            opened(junk, folder)


def test_only_entries_of_the_app_are_kept() -> None:
    part = AppPart("shop", activations=1)
    other, own = entry(1, "other"), entry(2)
    activation = Entry(
        offset="3-0", received=NOW, fields=Activation(number=1, scope="other", digest=RULES, time=NOW).entry()
    )  # fmt: skip
    drops: list[tuple[str | None, tuple[str, ...]]] = [
        ("other", ("1-0",)),
        ("shop", ("2-0",)),
        (None, ("1-0", "2-0")),
        (None, ("1-0",)),
    ]
    dropped = [
        Entry(
            offset=f"{number}-0",
            received=NOW,
            fields={wire.DROPPED: wire.DroppedLetter(app, None, None, offsets, "x").encode()},
        )
        for number, (app, offsets) in enumerate(drops, 4)
    ]
    invalid = Entry(offset="8-0", received=NOW, fields={b"ce_appid": b"shop", b"data": b"{"})
    nothing = Entry(offset="9-0", received=NOW, fields={b"specversion": b"?"})
    found = part.of([other, own, activation, *dropped, invalid, nothing])
    assert [each.offset for each in found] == [f"{n}-0" for n in range(1, 10)]
    assert [each.offset for each in found if not each.erased] == ["2-0", "5-0", "6-0", "8-0"]
    assert all(not each.fields for each in found if each.erased)
    cut = wire.dropped_of(found[5].fields)
    assert cut is not None
    assert (cut.app_id, cut.offsets) == ("shop", ("2-0",))
    aside = DeadLetter(
        id="0:set-aside", reason="set_aside", message="", position="0:1-0", offsets=("1-0", "2-0"), count=2, time=NOW,
        fields=wire.pack(other.fields),
    )  # fmt: skip
    kept = part.letter(aside)
    assert kept is not None
    assert (kept.offsets, kept.fields, kept.app_id) == (("2-0",), {}, "shop")
    assert part.letter(aside.model_copy(update={"app_id": "other"})) is None
    assert export_file.VERSION == 1
