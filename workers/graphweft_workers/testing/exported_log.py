"""The log of an app in a file of ``graphweft export``."""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from graphweft_workers.archive.blobs import open_blobs
from graphweft_workers.archive.export_check import check_export
from graphweft_workers.archive.export_file import UnpackedExport
from graphweft_workers.archive.reader import ArchiveReader
from graphweft_workers.ports.event_log import Entry

_PAGE: Final = 1_000


def exported_entries(file: Path) -> list[tuple[int, Entry]]:
    """Return the entries of the app with their partitions: the oldest history first, each by the time of receipt.

    Raises ``InvalidExport``, and ``OSError`` if the file cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="graphweft-replay-") as folder, file.open("rb") as given:
        export = UnpackedExport.unpack(given, Path(folder))
        check_export(export)
        # The caller may be within an event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, _entries(export)).result()


async def _entries(export: UnpackedExport) -> list[tuple[int, Entry]]:
    found: list[tuple[int, Entry]] = []
    for number in range(1, len(export.manifest.histories) + 1):
        reader = ArchiveReader(open_blobs(str(export.folder / f"{number:04}")))
        history: list[tuple[int, Entry]] = []
        for partition in await reader.partitions():
            offset = ""
            while page := await reader.after(partition, offset, limit=_PAGE):
                # Of other apps only the places are in the file.
                history += [(partition, entry) for entry in page if entry.fields]
                offset = page[-1].offset
        found += sorted(history, key=lambda item: item[1].received)  # stable: partitions keep their order
    return found
