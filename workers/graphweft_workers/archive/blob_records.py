"""Records by key in the archive, for commands that work without a bus, or beside others that do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from graphweft_workers.ports.blobs import BlobStore
from graphweft_workers.ports.records import Records

_FOLDER: Final = "records/"


@dataclass(frozen=True, slots=True)
class BlobRecords:
    """``RecordLog`` of records that are always read whole: a blob each."""

    blobs: BlobStore

    async def put(self, key: str, record: bytes | None) -> None:
        """See ``RecordLog.put``."""
        if record is None:
            await self.blobs.delete([_FOLDER + key])
        else:
            await self.blobs.put(_FOLDER + key, record)

    async def after(self, mark: int | None) -> Records:
        """See ``RecordLog.after``."""
        names = await self.blobs.names(_FOLDER)
        found = {name.removeprefix(_FOLDER): await self.blobs.get(name) for name in names}
        return Records(found={key: record for key, record in found.items() if record is not None}, mark=0)
