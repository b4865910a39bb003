"""Stores the marks of the apps of a partition on the bus, so that a worker that starts need not read the whole log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from graphweft_contracts import GraphUnavailable
from graphweft_workers.engine.log.duplicates import RecentEvents
from graphweft_workers.engine.log.series import AppRecord
from graphweft_workers.ports.records import RecordLog
from graphweft_workers.support.lazy_logger import get_logger

MARKS_EVERY: Final = 2_500
"""Entries of an app after which its marks are stored again. A worker that starts reads back so many more."""
logger = get_logger("graphweft.mutation")


async def read_marks(series: RecordLog | None) -> Mapping[int, list[AppRecord]] | None:
    """Return what is stored of the apps, by partition; None if it is not known. Raises ``BusUnavailable``."""
    if series is None:
        return None
    found: dict[int, list[AppRecord]] = {}
    for key, record in (await series.after(None)).found.items():
        try:
            found.setdefault(int(key.partition(":")[0]), []).append(AppRecord.decode(record))
        except ValueError as error:
            logger.warning(
                "marks_unreadable", key=key, error=str(error),
                message="the numbers of events are read from the log instead",
            )  # fmt: skip
            return None
    return found


def is_outdated(stored: Mapping[int, list[AppRecord]] | None, partition: int, recent: RecentEvents) -> bool:
    """Tell by what is stored now whether the log of an app has changed since the partition was opened."""
    known = {record.app_id for record in recent.records if record.is_of_changed_log}
    found = (stored or {}).get(partition, ())
    return any(record.is_of_changed_log and record.app_id not in known for record in found)


async def forget_marks(series: RecordLog | None, partition: int, app_id: str) -> None:
    """Let workers read the numbers of an app from the log, because entries were erased. Raises ``BusUnavailable``."""
    if series is not None:
        await series.put(f"{partition}:{app_id}", AppRecord.of_changed_log(app_id).encode())


async def write_marks(
    series: RecordLog | None, partition: int, recent: RecentEvents, position: str, *, least: int
) -> None:
    """Store the marks at a position of the apps for which it is due; see ``RecentEvents.due``.

    Call it before the position is committed. Raises ``BusUnavailable``, and ``GraphUnavailable`` if the partition is to
    be opened again.
    """
    if series is None:
        return
    due = recent.due(least)
    if due and is_outdated(await read_marks(series), partition, recent):
        raise GraphUnavailable("entries were erased: the partition is opened again, to know what is left")
    for app_id in due:
        record = recent.record_of(app_id, position)
        if record is not None:
            await series.put(f"{partition}:{app_id}", record.encode())
            recent.keep(record)
