"""Up to where the graphs of a FalkorDB server are complete: hashes beside the graphs.

They are in the same append-only file and in the same dump, behind the writes that they speak of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError

from graphweft_contracts import channels
from graphweft_workers.drivers.falkordb.errors import translate
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import PositionMove
from graphweft_workers.support.lazy_logger import get_logger

logger = get_logger("graphweft.graph")

# A server that is out of memory refuses a script's first write if that may need memory, and no later one.
_MOVE: Final = """
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
"""

_OF_PARTITION: Final = re.compile(r":[0-9]+$")
"""Ends the key of what the graphs of one partition have reached."""


class FalkorDBPositions:
    """The positions of the graphs of one template."""

    def __init__(self, redis: Any, template: str) -> None:
        self._redis = redis
        self._template = template
        self._key = channels.graph_positions(template)
        self.forbidden = False
        """Whether the server refuses to keep them, because the user lacks the rights: then none are kept."""

    async def read(self) -> dict[int, CommittedPosition] | None:
        """See ``GraphStore.positions``."""
        found = await self._all_of(self._key)
        if self.forbidden:
            return None
        return {int(partition): CommittedPosition.of_text(value) for partition, value in found.items()}

    async def other_templates(self) -> list[str]:
        """Return the other templates of graphs that workers have written here; none if this user may not look."""
        begin = f"{channels.GRAPH_POSITIONS}:"
        try:
            keys = [str(key).removeprefix(begin) async for key in self._redis.scan_iter(match=f"{begin}*", count=1_000)]
        except NoPermissionError:
            return []
        except (RedisError, OSError) as error:
            raise translate(error) from error
        return sorted(key for key in keys if key != self._template and not _OF_PARTITION.search(key))

    async def reached(self, partition: int) -> Mapping[str, str]:
        """See ``GraphStore.reached``."""
        return await self._all_of(channels.graphs_reached(self._template, partition))

    async def forget(self, app_id: str) -> None:
        """Name an app no more. Raises what the server raises."""
        if self.forbidden or not (partitions := await self.read()):
            return
        pipeline = self._redis.pipeline(transaction=False)
        for partition in partitions:
            pipeline.hdel(channels.graphs_reached(self._template, partition), app_id)
        await pipeline.execute()

    def move(self, move: PositionMove) -> tuple[Any, ...]:
        """Return the command of a move, whose reply is 0 if the server does not say ``before``."""
        keys = self._key, channels.graphs_reached(self._template, move.partition)
        before = "" if move.before is None else move.before.to_text()
        reached = [text for pair in move.reached.items() for text in pair]
        return ("EVAL", _MOVE, 2, *keys, move.partition, before, move.after.to_text(), *reached)

    def is_forbidden(self, reply: object) -> bool:
        """Tell whether a reply refuses a right, and warn once."""
        if not isinstance(reply, NoPermissionError):
            return False
        if not self.forbidden:
            self.forbidden = True
            logger.warning(
                "graph_positions_not_kept", error=str(reply),
                message="a graph that is restored from a copy is not recognised as older than the log",
                next="give the user of the workers the rights that `graphweft acl falkordb` prints",
            )  # fmt: skip
        return True

    async def _all_of(self, key: str) -> Mapping[str, str]:
        if self.forbidden:
            return {}
        try:
            return dict(await self._redis.hgetall(key))
        except (RedisError, OSError) as error:
            if self.is_forbidden(error):
                return {}
            raise translate(error) from error
