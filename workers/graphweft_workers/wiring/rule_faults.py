"""The errors of a folder of rules, kept on the bus so that ``graphweft status`` and the console show them."""

from __future__ import annotations

import json
from typing import Final

from graphweft_contracts import Transient
from graphweft_workers.ports.bus import Bus
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.rules")

_RECORD: Final = "rules-folder"
"""One record: the process that looked at its folder last wrote it."""
_MOST: Final = 20_000
"""Characters of the errors."""


async def keep_faults(bus: Bus, folder: str, faults: str) -> None:
    """Replace the errors by those that a process found in its folder; "" for none. A bus that refuses is logged."""
    try:
        known = (await bus.usage.after(None)).found.get(_RECORD)
        record = json.dumps({"folder": folder, "faults": faults[:_MOST]}).encode() if faults else None
        if known != record:
            await bus.usage.put(_RECORD, record)
    except Transient as error:
        logger.warning(
            "rule_faults_not_kept", reason=str(error), next="`graphweft status` does not show them; this log does"
        )


async def read_faults(bus: Bus) -> str:
    """Return the errors of the folder that a process looked at last; "" for none. Raises ``BusUnavailable``."""
    record = (await bus.usage.after(None)).found.get(_RECORD)
    if record is None:
        return ""
    try:
        found = json.loads(record)
        return str(found["faults"])
    except (ValueError, TypeError, KeyError):
        return "the record of the errors of a rules folder is of another version: start its worker again"
