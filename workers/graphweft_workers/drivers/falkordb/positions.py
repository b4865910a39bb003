"""Up to where the graphs of a FalkorDB server are complete: hashes beside the graphs.

They are in the same append-only file and in the same dump, behind the writes that they speak of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from redis.exceptions import NoPermissionError, RedisError

from graphweft_contracts import channels
from graphweft_contracts.clock import Clock
from graphweft_workers.drivers.falkordb.errors import translate
from graphweft_workers.drivers.falkordb.statements import run_of
from graphweft_workers.ports.event_log import CommittedPosition
from graphweft_workers.ports.graph_store import PositionMove
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.refused_right import RefusedRight

logger = get_logger("graphweft.graph")

# A server that is out of memory refuses a script's first write if that may need memory, and no later one.
_MOVE: Final = """
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
"""

_NOTHING: Final = "return 0"
_OF_PARTITION: Final = re.compile(r":[0-9]+$")
"""Ends the key of what the graphs of one partition have reached."""


class FalkorDBPositions:
    """The positions of the graphs of one template."""

    def __init__(self, redis: Any, template: str, clock: Clock) -> None:
        self._redis = redis
        self._template = template
        self._key = channels.graph_positions(template)
        self._reads = RefusedRight(clock)
        self._moves = RefusedRight(clock)
        self._unsaid: dict[int, PositionMove] = {}
        """By partition: the moves that the server refused, as one. They are made when the user has the right."""
        self._run = ""
        """The run of the server that refused them: a later one may have lost what they speak of."""

    async def read(self) -> dict[int, CommittedPosition] | None:
        """See ``GraphStore.positions``: None also while the user may not keep them."""
        await self._say_unsaid()
        found = await self._all_of(self._key)
        if self._reads.is_refused or self._moves.is_refused:
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
        if not (partitions := await self.read()):
            return
        pipeline = self._redis.pipeline(transaction=False)
        for partition in partitions:
            pipeline.hdel(channels.graphs_reached(self._template, partition), app_id)
        await pipeline.execute()

    async def command(self, move: PositionMove, run: str) -> tuple[Any, ...] | None:
        """Return the command of a move, with those before it that were refused; None while it would be refused too.

        ``took_effect`` is to be asked about its reply. Raises what the server raises.
        """
        await self._forget_unsaid(run)
        earlier = self._unsaid.get(move.partition)
        if self._moves.is_due:
            return self._command(_joined(earlier, move))
        self._unsaid[move.partition] = _joined(earlier, move)
        return None

    def took_effect(self, move: PositionMove, run: str, reply: object) -> bool:
        """Tell whether a move took effect; False if the user may not make it. Raises ``GraphUnavailable``."""
        if isinstance(reply, NoPermissionError):
            self._refuse(self._moves, reply)
            self._unsaid[move.partition], self._run = _joined(self._unsaid.get(move.partition), move), run
            return False
        self._unsaid.pop(move.partition, None)
        if isinstance(reply, Exception):
            raise translate(reply) from reply
        self._allow(self._moves)
        if not reply:
            raise move.refused()
        return True

    def _command(self, move: PositionMove) -> tuple[Any, ...]:
        """Return the command of a move, whose reply is 0 if the server does not say ``before``."""
        keys = self._key, channels.graphs_reached(self._template, move.partition)
        before = "" if move.before is None else move.before.to_text()
        reached = [text for pair in move.reached.items() for text in pair]
        return ("EVAL", _MOVE, 2, *keys, move.partition, before, move.after.to_text(), *reached)

    async def _say_unsaid(self) -> None:
        """Make the moves that were refused, if the user may have the right by now: partitions may be quiet."""
        if not self._moves.is_refused or not self._moves.is_due:
            return
        try:
            await self._forget_unsaid(self._run)
            for move in list(self._unsaid.values()):
                # If it says 0, the server has another position: who holds the partition sees that by ``read``.
                await self._redis.execute_command(*self._command(move))
                if self._unsaid.get(move.partition) is move:
                    del self._unsaid[move.partition]
            if not await self._redis.eval(_NOTHING, 1, self._key):
                self._allow(self._moves)
        except NoPermissionError as error:
            self._refuse(self._moves, error)
        except (RedisError, OSError) as error:
            raise translate(error) from error

    async def _forget_unsaid(self, run: str) -> None:
        """Forget the moves that were refused, unless the server is in the same run: it may have lost its graphs."""
        if self._unsaid and not self._run == run == run_of(await self._redis.info("server")):
            self._unsaid.clear()

    async def _all_of(self, key: str) -> Mapping[str, str]:
        if not self._reads.is_due:
            return {}
        try:
            found = dict(await self._redis.hgetall(key))
        except NoPermissionError as error:
            self._refuse(self._reads, error)
            return {}
        except (RedisError, OSError) as error:
            raise translate(error) from error
        self._allow(self._reads)
        return found

    def _refuse(self, right: RefusedRight, error: Exception) -> None:
        is_known = self._reads.is_refused or self._moves.is_refused
        right.refuse()
        if not is_known:
            logger.warning(
                "graph_positions_not_kept", error=str(error),
                message="a graph that is restored from a copy is not recognised as older than the log",
                next="give the user of the workers the rights that `graphweft acl falkordb` prints; they are used "
                "within a minute",
            )  # fmt: skip

    def _allow(self, right: RefusedRight) -> None:
        if right.allow() and not (self._reads.is_refused or self._moves.is_refused):
            logger.info("graph_positions_kept")


def _joined(earlier: PositionMove | None, move: PositionMove) -> PositionMove:
    """Return two moves of a partition that follow each other as one."""
    if earlier is None:
        return move
    return replace(move, before=earlier.before, reached={**earlier.reached, **move.reached})
