"""The file of an export: a tar whose members have numbers for names, and a manifest that says what they are.

It is written in one pass: a description first, then each history as a small archive, the manifest last. The manifest
has the size and the hash of each member, and the digest of the graph. Reading trusts nothing: a member's number is the
only name that reaches the file system, and nothing is unpacked beyond a limit.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from graphweft_contracts import InvalidSettings
from graphweft_contracts.events import AppId
from graphweft_contracts.wire import explain
from graphweft_workers.archive import segments as format_
from graphweft_workers.text.content_limits import TooMuch, check_values

VERSION: Final = 1
MOST_BYTES: Final = 64 * 1024**2
"""The most of one member: a segment has 8 MiB of entries, or a single larger one."""
_BLOCK: Final = 512
_PART: Final = 1024**2
PENDING: Final = "pending/"
"""Folder of the dead letters that came with earlier histories. It is of the file alone."""
_MANIFEST: Final = "manifest.json"
_MOST_MEMBERS: Final = 999_999
_HISTORY: Final = re.compile(r"([0-9]{4})/(.+)")
_NAMES: Final = re.compile(
    r"layout\.json|rules/sets/[0-9a-f]{64}\.json|rules/activations/[0-9]{8}\.json|(letters|pending)/[0-9]{14}_[0-9a-f]{20}\.jsonl\.zst",
    re.ASCII,
)
_SHA256: Final = r"^[0-9a-f]{64}$"
_OFFSET: Final = r"^([0-9]{1,20}(-[0-9]{1,20})?)?$"

type _Count = Annotated[int, Field(ge=0)]
type _Hash = Annotated[str, Field(pattern=_SHA256)]
type _Offsets = Mapping[Annotated[int, Field(ge=0, lt=100_000)], Annotated[str, Field(pattern=_OFFSET)]]


class InvalidExport(InvalidSettings):
    """A file is not an export, or a damaged one. Nothing of it was used."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GraphState(_Part):
    """The app's graph when it was exported: the live one, with all events of the file and no others."""

    sha256: _Hash
    nodes: _Count
    relationships: _Count


class History(_Part):
    """The log of the app on one bus. An app that was restored before has several, the oldest first."""

    app: AppId
    """The app that its entries name."""
    ends: _Offsets
    """By partition: the offset up to which it is in the file."""
    checkpoints: _Offsets
    """By partition: the checkpoint of the graph. Events after it have no effect."""
    entries: _Count
    """Entries of the app."""
    others: _Count
    """Entries of other apps, of which only the places are in the file."""
    rules: _Count
    """Rule sets."""
    activations: _Count
    dead_letters: _Count
    """Those of the log."""
    pending: _Count = 0
    """Those that came with earlier histories and were neither retried nor dropped."""


class Member(_Part):
    """One member of the file."""

    name: str
    """The name of the file in the archive: the number of the history, then the name within it."""
    size: Annotated[int, Field(ge=0, le=MOST_BYTES)]
    sha256: _Hash


class Manifest(_Part):
    """What an export holds."""

    format: Literal["graphweft-export"] = "graphweft-export"
    version: int = VERSION
    graphweft: str
    """The version that wrote it."""
    app: AppId
    time: datetime
    graph: GraphState
    histories: Annotated[list[History], Field(min_length=1, max_length=999)]
    members: list[Member]


class ExportWriter:
    """Writes members one after the other. Nothing is read back, so the file may be a stream."""

    def __init__(self, file: BinaryIO, app_id: str) -> None:
        self._file = file
        self.members: list[Member] = []
        about = {"format": "graphweft-export", "version": VERSION, "app": app_id}
        self._append("about.json", json.dumps(about).encode())

    def add(self, name: str, data: bytes) -> None:
        """Write a member. Raises ``InvalidSettings`` for one that no restore would read."""
        if len(data) > MOST_BYTES or len(self.members) >= _MOST_MEMBERS:
            raise InvalidSettings(f"the app is too large for one file: {name} has {len(data):,} bytes")
        self.members.append(Member(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest()))
        self._append(f"{len(self.members):06}", data)

    def finish(self, manifest: Manifest) -> str:
        """Write the manifest, which lists ``members``, and the end; return the hash that identifies the file."""
        data = manifest.model_dump_json(indent=1).encode()
        self._append(_MANIFEST, data)
        self._file.write(bytes(2 * _BLOCK))
        return hashlib.sha256(data).hexdigest()

    def _append(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._file.write(info.tobuf(tarfile.USTAR_FORMAT))
        self._file.write(data)
        self._file.write(bytes(-len(data) % _BLOCK))


class UnpackedExport:
    """An export in a folder: the members under their names in an archive, below ``folder/histories``."""

    def __init__(self, folder: Path, manifest: Manifest, sha256: str) -> None:
        self.folder = folder / "histories"
        self.manifest = manifest
        self.sha256 = sha256
        """Of the manifest: it identifies the file."""

    @classmethod
    def unpack(cls, file: BinaryIO, folder: Path) -> Self:
        """Unpack an export into an empty folder, and check sizes and hashes. Blocks.

        Raises ``InvalidExport``. What the members say is not checked; see ``check_export``.
        """
        members = folder / "members"
        members.mkdir()
        found: list[tuple[int, str]] = []
        _check_about(_small(file, "about.json"))
        while True:
            info = _header(file)
            if info.name == _MANIFEST:
                text = _text(file, info)
                break
            if info.name != f"{len(found) + 1:06}":
                raise InvalidExport(f"no export of graphweft: an unexpected member {info.name!r}")
            found.append((info.size, _copy(file, info, members / info.name)))
        try:
            check_values(text)
            manifest = Manifest.model_validate_json(text)
        except TooMuch as error:
            raise InvalidExport(f"the manifest of the export is invalid: {error}") from error
        except ValidationError as error:
            raise InvalidExport(f"the manifest of the export is invalid: {explain(error)}") from error
        if manifest.version != VERSION:
            raise InvalidExport(_other_version(manifest.version))
        if [(each.size, each.sha256) for each in manifest.members] != found:
            raise InvalidExport("the export is damaged: its members are not those that its manifest lists")
        unpacked = cls(folder, manifest, hashlib.sha256(text).hexdigest())
        unpacked._place(members)
        return unpacked

    def _place(self, members: Path) -> None:
        """Give the members their names, which are known to be names of an archive's files."""
        names = [each.name for each in self.manifest.members]
        if len({*names}) != len(names):
            raise InvalidExport("the export is damaged: two members have one name")
        for number, name in enumerate(names, 1):
            if not _is_name(name, len(self.manifest.histories)):
                raise InvalidExport(f"no export of graphweft: it has a member for {name!r}")
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            (members / f"{number:06}").rename(path)


def _is_name(name: str, histories: int) -> bool:
    """Tell whether a member of an export may have this name."""
    found = _HISTORY.fullmatch(name)
    if found is None or not 1 <= int(found[1]) <= histories:
        return False
    return _NAMES.fullmatch(found[2]) is not None or format_.parse_name(found[2]) is not None


def _header(file: BinaryIO) -> tarfile.TarInfo:
    block = file.read(_BLOCK)
    if len(block) != _BLOCK or not any(block):
        raise InvalidExport("the export is damaged: it ends before its manifest")
    try:
        # Only plain headers are read: no links, no long names, no extensions.
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise InvalidExport("the file is no export of graphweft, or is damaged: it is no plain tar") from error
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise InvalidExport(f"no export of graphweft: its member {info.name!r} is no regular file")
    if not 0 <= info.size <= MOST_BYTES:
        raise InvalidExport(f"no export of graphweft: its member {info.name!r} has {info.size:,} bytes")
    return info


def _small(file: BinaryIO, name: str) -> bytes:
    info = _header(file)
    if info.name != name or info.size > _BLOCK:
        raise InvalidExport("the file is no export of graphweft: write one with `graphweft export`")
    return _text(file, info)


def _text(file: BinaryIO, info: tarfile.TarInfo) -> bytes:
    data = file.read(info.size)
    if len(data) != info.size:
        raise InvalidExport("the export is damaged: it ends within a member")
    file.read(-info.size % _BLOCK)
    return data


def _copy(file: BinaryIO, info: tarfile.TarInfo, path: Path) -> str:
    """Write a member to a file; return its hash."""
    digest, left = hashlib.sha256(), info.size
    with path.open("xb") as made:
        while left:
            data = file.read(min(left, _PART))
            if not data:
                raise InvalidExport("the export is damaged: it ends within a member")
            made.write(data)
            digest.update(data)
            left -= len(data)
    file.read(-info.size % _BLOCK)
    return digest.hexdigest()


def _check_about(data: bytes) -> None:
    try:
        about: Any = json.loads(data)
        name, version = about["format"], about["version"]
    except (ValueError, LookupError, TypeError, RecursionError):
        name, version = "", 0
    if name != "graphweft-export":
        raise InvalidExport("the file is no export of graphweft: write one with `graphweft export`")
    if version != VERSION:
        raise InvalidExport(_other_version(version))


def _other_version(version: object) -> str:
    return (
        f"the export has the format {version!r}, and this version of graphweft reads {VERSION}: use the version that "
        "wrote it"
    )
