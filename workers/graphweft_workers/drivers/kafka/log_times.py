"""The times of entries on Kafka: they must be those of the brokers, or else producers choose them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from graphweft_contracts import channels
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.bus")

LOG_TIME: Final = "LogAppendTime"


def how_to_set_times(topic: str) -> str:
    """Return the command by which the records of a topic get the times of the brokers."""
    return (
        "run `kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name "
        f"{topic} --add-config message.timestamp.type={LOG_TIME}`"
    )


TIMES_MATTER: Final = (
    "erasures compare the times of entries in different partitions, `--before` and `--as-of` go by them. Entries from "
    "before keep their times"
)
BROKERS_TIME: Final = 1
"""The kind of time of a record that has the time of its broker, and not of its producer."""
_CREATE_TIME: Final = 0


class LogTimes:
    """Warns once of entries that do not have the brokers' time."""

    def __init__(self) -> None:
        self._warned = False

    def look_at(self, records: Sequence[Any]) -> None:
        """Warn if the last of these records has its producer's time."""
        if not self._warned and records and records[-1].timestamp_type == _CREATE_TIME:
            self._warned = True
            logger.warning(
                "times_of_producers", partition=records[-1].partition, offset=records[-1].offset,
                next=f"{how_to_set_times(channels.EVENTS_TOPIC)}; {TIMES_MATTER}",
            )  # fmt: skip
