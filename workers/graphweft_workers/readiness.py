"""What a role that was started is still to do before it serves."""

from __future__ import annotations

import socket
from typing import Final

from redis.exceptions import RedisError

from graphweft_contracts import BusUnavailable, channels
from graphweft_workers import heartbeat
from graphweft_workers.doctor import redis_servers
from graphweft_workers.memory import jobs
from graphweft_workers.services import make_bus
from graphweft_workers.settings import Settings

_GROUPS: Final = {"mutation": (channels.MUTATION_GROUP,)}


async def waits_for(settings: Settings, role: str, *, pid: int, worker_name: str) -> str:
    """Return what the process of a role has not done yet, for people; empty when it serves. The bus is on Redis.

    ``worker_name`` is the name under which it holds partitions. What an earlier process left on the bus does not count.
    """
    beat = heartbeat.read(role, pid)
    if beat is None or beat.state == "starting":
        return "loads its rules"
    if beat.state == "ended":
        return "has ended"
    try:
        if role == "injection":
            # A responder's name holds its process: the requests of one that has just died still seem to be asked for.
            alive = await redis_servers.responders(settings.bus)
            own = f"{socket.gethostname()}-{pid}-"
            return "" if any(name.startswith(own) for name in alive) else "asks for no requests yet"
        for group in _GROUPS.get(role, jobs.groups(settings)):
            bus = make_bus(settings, group=group)
            try:
                owners = [partition.owner for partition in await bus.status()]
            finally:
                await bus.aclose()
            free = [str(number) for number, owner in enumerate(owners) if owner is None]
            if free:
                return f"has not claimed partition {', '.join(free)}"
            if worker_name not in owners:
                return "waits for partitions that another worker holds"
    except (BusUnavailable, RedisError, OSError) as error:
        return f"its bus does not answer: {' '.join(str(error).split())}"
    return ""
