"""Whether a started role serves yet."""

from __future__ import annotations

import socket
from contextlib import aclosing
from typing import Final

from graphweft_contracts import BusUnavailable, channels
from graphweft_contracts.plurals import counted
from graphweft_workers.processes import heartbeat
from graphweft_workers.settings.settings import Settings
from graphweft_workers.wiring import features as jobs
from graphweft_workers.wiring.connections import make_bus, responders

_GROUPS: Final = {"mutation": (channels.MUTATION_GROUP,), "archive": (channels.ARCHIVE_GROUP,)}


async def waits_for(settings: Settings, role: str, *, pid: int, worker_name: str) -> str:
    """Return, for people, what the process of a role waits for; empty if it serves.

    ``worker_name`` is its name as the owner of partitions. Traces of earlier processes on the bus do not count.
    """
    beat = heartbeat.read(role, pid)
    if beat is None or beat.state == "starting":
        return "loads its rules"
    if beat.state == "ended":
        return "has ended"
    try:
        if role == "injection":
            # The name contains the pid: a responder that has just died still seems to ask for requests.
            alive = await responders(settings)
            own = f"{socket.gethostname()}-{pid}-"
            return "" if any(name.startswith(own) for name in alive) else "asks for no requests yet"
        async with aclosing(make_bus(settings)) as bus:
            for group in _GROUPS.get(role, jobs.groups(settings)):
                owners = [partition.owner for partition in await bus.partitions.status(group=group)]
                free = owners.count(None)
                if free:
                    return f"has not claimed {free} of {counted(len(owners), 'partition')} yet"
                if worker_name not in owners:
                    return "waits for partitions that another worker holds"
    except (BusUnavailable, OSError) as error:
        return f"its bus does not answer: {' '.join(str(error).split())}"
    return ""
