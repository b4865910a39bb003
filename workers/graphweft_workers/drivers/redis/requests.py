"""``RequestQueue`` on Redis streams with a consumer group; replies go out over Pub/Sub.

An app may have a stream of its own. One read is of all streams, and one that cannot be read is left out: it must not
keep the others waiting.

A responder with assigned requests sends a heartbeat many times a second. The same script gives it the requests of
responders without a recent heartbeat: each after a share of its budget, so that there is time left to answer it.
XAUTOCLAIM alone would decide by the age of requests: it would take them from slow responders, and all of them would be
answered twice. While no responder has a request, all of them wait at the server for the next one, whoever gets it.

A request is taken over once. Otherwise a request that crashes a responder would crash all of them, one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from graphweft.transports.redis.connection import CommandBatcher, connect
from graphweft.transports.redis.lines import Lines
from graphweft.transports.redis.refusals import bus_errors, request_refusal
from graphweft_contracts import BusUnavailable, ContextReply, channels
from graphweft_contracts.clock import SYSTEM_CLOCK, Clock
from graphweft_contracts.signatures import SIGNATURE
from graphweft_workers.drivers.redis.streams import request_faults, request_streams
from graphweft_workers.drivers.redis.timing import REDIS_BUS_TIMING, RedisBusTiming
from graphweft_workers.ports.request_queue import PendingRequest, encode
from graphweft_workers.support.lazy_logger import get_logger
from graphweft_workers.support.tasks import begun, end_tasks

logger = get_logger("graphweft.injection")

_TAKEN_AT_ONCE: Final = 64
_DONE_AT_ONCE: Final = 500
_REPLY_CONNECTIONS: Final = 8
_OWN: Final = channels.own_context_requests("")
_HANDED_ON: Final = 1_000
"""Stored as the number of deliveries, because reading one's own requests again counts as a delivery too."""

# KEYS: the heartbeats, and the streams. ARGV: group, own name, how long a heartbeat counts in ms, the limit of requests
# to take over, the number of deliveries of those that were taken over before, the least silence in ms after which a
# request is taken over, the share of its budget, by how many ms this process is late. A request goes to another
# responder when its own has been silent, and has had it, for the share of the budget, but no shorter than the least
# silence, and no longer than a heartbeat counts. Returns the entries that were taken over, each with the number of its
# stream, and the number of those that were given up; and if no request is assigned, the offset in each stream up to
# which requests were. It writes nothing then. A key without the group is passed over.
_SIGN: Final = """
local taken = {}
local lost = 0
local assigned = false
local alive = tonumber(ARGV[3])
local room = tonumber(ARGV[4])
local least, share, late = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local now
local function patience(stream, entry)
  local wait = alive
  local found = redis.call('XRANGE', stream, entry, entry)
  for index = 1, found[1] and #found[1][2] or 0, 2 do
    if found[1][2][index] == 'budget_ms' then
      local budget = tonumber(found[1][2][index + 1])
      if budget then wait = math.min(alive, math.max(least, budget * share)) end
    end
  end
  return wait + late
end
for number = 2, #KEYS do
  local stream = KEYS[number]
  local pending = redis.pcall('XPENDING', stream, ARGV[1])
  if not pending.err and pending[1] > 0 then
    assigned = true
    if not now then
      local time = redis.call('TIME')
      now = time[1] * 1000 + math.floor(time[2] / 1000)
    end
    for _, holder in ipairs(pending[4]) do
      local name = holder[1]
      if name == ARGV[2] then
        redis.call('ZADD', KEYS[1], now + alive, name)
      else
        local silent = now + alive - tonumber(redis.call('ZSCORE', KEYS[1], name) or '0')
        if room > 0 and silent >= least + late then
          local left = redis.call('XPENDING', stream, ARGV[1], 'IDLE', least + late, '-', '+', room, name)
          for _, entry in ipairs(left) do
            local held = math.min(silent, entry[3])
            if entry[4] >= tonumber(ARGV[5]) then
              if held >= alive + late then
                redis.call('XACK', stream, ARGV[1], entry[1])
                redis.call('XDEL', stream, entry[1])
                lost = lost + 1
                room = room - 1
              end
            elseif held >= alive + late or held >= patience(stream, entry[1]) then
              local claimed = redis.call('XCLAIM', stream, ARGV[1], ARGV[2], 0, entry[1], 'RETRYCOUNT', ARGV[5])
              for _, each in ipairs(claimed) do taken[#taken + 1] = {number - 1, each} end
              room = room - 1
            end
          end
          if silent >= alive + late and #redis.call('XPENDING', stream, ARGV[1], '-', '+', 1, name) == 0 then
            redis.call('XGROUP', 'DELCONSUMER', stream, ARGV[1], name)
            redis.call('ZREM', KEYS[1], name)
          end
        end
      end
    end
  end
end
if #taken > 0 then redis.call('ZADD', KEYS[1], now + alive, ARGV[2]) end
if assigned then return {taken, lost} end
local places = {}
for number = 2, #KEYS do
  local groups = redis.pcall('XINFO', 'GROUPS', KEYS[number])
  local place = '0-0'
  for _, group in ipairs(groups.err and {} or groups) do
    local fields = {}
    for index = 1, #group, 2 do fields[group[index]] = group[index + 1] end
    if fields['name'] == ARGV[1] then place = fields['last-delivered-id'] end
  end
  places[number - 1] = place
end
return {taken, lost, places}
"""

# KEYS as above. ARGV: group, age in ms; or group, 0, own name. Deletes consumers without requests: those that are idle
# for this time, or the named one.
_CLEAN: Final = """
for number = 2, #KEYS do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[number], ARGV[1])
  if consumers.err then consumers = {} end
  for _, fields in ipairs(consumers) do
    local consumer = {}
    for index = 1, #fields, 2 do consumer[fields[index]] = fields[index + 1] end
    local named = not ARGV[3] or ARGV[3] == consumer['name']
    if named and consumer['pending'] == 0 and consumer['idle'] >= tonumber(ARGV[2]) then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[number], ARGV[1], consumer['name'])
      redis.call('ZREM', KEYS[1], consumer['name'])
    end
  end
end
"""


def _pending(token: str, stream: str, fields: Sequence[bytes] | None, *, taken_over: bool) -> PendingRequest:
    fields = fields or ()  # trimmed
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    return PendingRequest(
        token=token,
        body=values.get(b"data", b""),
        signature=values.get(SIGNATURE, b""),
        only_app=stream.removeprefix(_OWN) if stream.startswith(_OWN) else None,
        taken_over=taken_over,
    )


def _token(stream: str, offset: str) -> str:
    """Return the token of a request: its offset, and its stream if that is an app's own."""
    return offset if stream == channels.CONTEXT_REQUESTS else f"{offset} {stream}"


class RedisRequestQueue:
    """``RequestQueue`` on Redis streams. ``consumer`` names the responder and must be unique."""

    def __init__(
        self, url: str, *, consumer: str, clock: Clock = SYSTEM_CLOCK, timing: RedisBusTiming = REDIS_BUS_TIMING
    ) -> None:
        self._clock = clock
        self._timing = timing
        io_timeout_s = timing.request_s + timing.io_s
        self._redis = connect(url, io_timeout_s=io_timeout_s)
        self._reader = Lines(url, io_timeout_s=io_timeout_s)
        self._repeating = Lines(url, io_timeout_s=timing.io_s, repeats=1)
        self._replies = CommandBatcher(self._repeating, connections=_REPLY_CONNECTIONS, at_once=self._is_last)
        self._consumer = consumer
        self._sign: Any = self._redis.register_script(_SIGN)
        self._clean: Any = self._redis.register_script(_CLEAN)
        self._joined = False
        """Whether the group exists, and earlier requests of this name were looked for."""
        self._streams: Sequence[str] = (channels.CONTEXT_REQUESTS,)
        """The streams that are read."""
        self._are_more = False
        """Whether there are streams that are not read."""
        self._ready: deque[PendingRequest] = deque()
        self._held: set[str] = set()
        """Tokens of all assigned requests: ready, handed out, or done and not yet removed."""
        self._done: list[str] = []
        self._reading: asyncio.Task[None] | None = None
        self._woken: asyncio.Future[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._left = False
        self._faults: dict[str, str] = {}
        """By stream: why it takes no requests."""

    async def next(self, limit: int, *, wait: bool = True) -> Sequence[PendingRequest]:
        """See ``RequestQueue.next``."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="graphweft-requests")
        if not self._ready:
            # A read continues after its call: it assigns requests, so it must not be cancelled.
            if self._reading is None:
                self._reading = begun(self._read(limit, wait), name="graphweft-requests-read")
            if not self._reading.done():
                self._woken = asyncio.get_running_loop().create_future()
                try:
                    await self._woken
                finally:
                    self._woken = None
        if self._reading is not None and self._reading.done():
            reading, self._reading = self._reading, None
            try:
                reading.result()
            except (RedisError, OSError) as error:
                # A server without its data has no group; and a lost response may have assigned requests.
                self._joined = False
                raise BusUnavailable(f"the bus is unavailable: {request_refusal(error)}") from error
        return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]

    def wake(self) -> None:
        """See ``RequestQueue.wake``."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def reply(self, channel: str, reply: ContextReply) -> bool:
        """See ``RequestQueue.reply``."""
        if not channel.startswith(channels.CONTEXT_REPLIES):
            return False
        with bus_errors(role="responder"):
            listeners: int = await self._replies.execute("PUBLISH", channel, encode(reply))
        return listeners > 0

    async def age_s(self, token: str) -> float | None:
        """See ``RequestQueue.age_s``."""
        with bus_errors(role="responder"):
            seconds, microseconds = await self._redis.time()
        return float(seconds + microseconds / 1e6 - int(token.partition("-")[0]) / 1000)

    def done(self, token: str) -> None:
        """See ``RequestQueue.done``."""
        self._done.append(token)

    async def leave(self) -> Sequence[PendingRequest]:
        """See ``RequestQueue.leave``."""
        self._left = True
        if self._reading is not None:
            # The server ends the wait; requests that it assigned meanwhile are found again.
            await end_tasks(self._reading)
            self._reading = None
            with contextlib.suppress(RedisError, OSError):  # TimeoutError is an OSError
                async with asyncio.timeout(self._timing.leave_s):
                    await self._read_own()
        rest = list(self._ready)
        self._ready.clear()
        return rest

    async def aclose(self) -> None:
        """See ``RequestQueue.aclose``."""
        await self.leave()
        if self._keeper is not None:
            await end_tasks(self._keeper)
            self._keeper = None
            with contextlib.suppress(RedisError, OSError):
                await self._take_off()
                await self._clean(keys=self._keys(), args=[channels.CONTEXT_GROUP, 0, self._consumer])
        await self._replies.aclose()
        await self._repeating.aclose()
        await self._reader.aclose()
        await self._redis.aclose()

    def _is_last(self) -> bool:
        """Tell whether at most one request is open, so that no other reply could go together with its own."""
        return len(self._held) - len(self._done) <= 1

    def _keys(self) -> tuple[str, ...]:
        """Return the keys of the scripts."""
        return (channels.RESPONDERS, *self._streams)

    async def _read(self, limit: int, wait: bool) -> None:
        try:
            if not self._joined or self._are_more:
                self._streams = await self._make_groups()
                self._are_more = False
                if not self._joined:
                    await self._read_own()
                    self._joined = True
                if self._ready:
                    return
            await self._assign(">", "COUNT", limit, *(("BLOCK", int(self._timing.request_s * 1000)) if wait else ()))
        finally:
            self.wake()  # it sees this task done, a turn of the loop later

    async def _read_own(self) -> None:
        """Find assigned requests whose response was lost."""
        await self._assign("0")

    async def _assign(self, start: str, *options: Any) -> None:
        """Add the requests of one read of the group. If this is cancelled, the server ends the read."""
        reader = ("XREADGROUP", "GROUP", channels.CONTEXT_GROUP, self._consumer)
        streams = self._streams
        found = await self._reader.execute(*reader, *options, "STREAMS", *streams, *[start] * len(streams))
        for stream, entries in found or ():
            self._add(stream.decode(), entries)

    def _add(
        self, stream: str, entries: Sequence[tuple[bytes, Sequence[bytes] | None]], *, taken_over: bool = False
    ) -> None:
        """Add those entries of a read or a claim that are new."""
        for offset, fields in entries:
            token = _token(stream, offset.decode())
            if token not in self._held:
                self._held.add(token)
                self._ready.append(_pending(token, stream, fields, taken_over=taken_over))

    async def _make_groups(self) -> list[str]:
        """Return the streams that can be read. Raises ``ResponseError`` if none can."""
        streams = await request_streams(self._redis)
        pipeline = self._redis.pipeline(transaction=False)
        for stream in streams:
            # From the beginning: requests that wait for a first responder are answered, and expired ones dropped.
            pipeline.xgroup_create(stream, channels.CONTEXT_GROUP, id="0", mkstream=True)
        answers = await pipeline.execute(raise_on_error=False)
        faults = {
            stream: answer for stream, answer in zip(streams, answers, strict=True)
            if isinstance(answer, Exception) and not str(answer).startswith("BUSYGROUP")
        }  # fmt: skip
        for fault in faults.values():
            if len(faults) == len(streams) or type(fault) is not ResponseError:
                raise fault
        return [stream for stream in streams if stream not in faults]

    async def _keep(self) -> None:
        """Send heartbeats, take over requests of dead responders, remove finished ones."""
        due = self._clock.monotonic()
        clean_at = look_at = due
        waited = False
        while True:
            places: Mapping[str, bytes] = {}
            try:
                if self._clock.monotonic() >= look_at:
                    look_at = self._clock.monotonic() + self._timing.stream_s
                    await self._look_at_streams()
                await self._take_off()
                # If this process is late, the others may be late too, and not dead.
                late_s = max(0.0, self._clock.monotonic() - due)
                if self._joined:
                    # After a wait, the others too have only begun to send heartbeats.
                    places = await self._look(0 if self._left or waited else _TAKEN_AT_ONCE, late_s)
                waited = False
                if self._joined and self._clock.monotonic() >= clean_at:
                    await self._clean(keys=self._keys(), args=[channels.CONTEXT_GROUP, self._timing.gone_ms])
                    clean_at = self._clock.monotonic() + self._timing.clean_s
                if places and not self._held:
                    await self._wait_behind(places)
                    waited = True
            except (RedisError, OSError) as error:
                logger.debug("requests_not_kept", error=str(error))
            except Exception:  # a defect: without heartbeats the others would take over all requests
                logger.exception("requests_not_kept")
            due = self._clock.monotonic() + self._timing.sign_s
            await self._clock.sleep(self._timing.sign_s)

    async def _look_at_streams(self) -> None:
        """Find new streams. Say once that a stream takes no requests, and that it does again."""
        found = await request_faults(self._redis)
        self._are_more = not found.keys() <= {*self._streams}
        for stream, fault in found.items():
            before = self._faults.get(stream, "")
            if fault and not before:
                logger.error("requests_ended", error=f"{stream} takes no requests: {fault}")
            elif before and not fault:
                logger.warning("requests_go_on", stream=stream)
        self._faults = found

    async def _wait_behind(self, places: Mapping[str, bytes]) -> None:
        """Wait until a stream has an entry behind its place, which somebody may have by now; about a second at most."""
        options = ("COUNT", 1, "BLOCK", int(self._timing.request_s * 1000))
        await self._reader.execute("XREAD", *options, "STREAMS", *places, *places.values())

    async def _look(self, room: int, late_s: float) -> Mapping[str, bytes]:
        """Send a heartbeat, and take over up to ``room`` requests. If nobody has a request, return by stream the place
        behind which the next one will be.
        """
        streams: Sequence[str] = self._streams
        entries: Sequence[tuple[int, Any]]
        timing = self._timing
        arguments = [channels.CONTEXT_GROUP, self._consumer, timing.alive_ms, room, _HANDED_ON]
        arguments += [min(timing.again_ms, timing.alive_ms), timing.again, round(late_s * 1000)]
        entries, lost, *rest = await self._sign(keys=(channels.RESPONDERS, *streams), args=arguments)
        if lost:
            logger.warning("requests_given_up", count=lost, error="two responders had them and sent no heartbeat")
        if entries:
            for number, entry in entries:
                self._add(streams[number - 1], [entry], taken_over=True)
            self.wake()
        return dict(zip(streams, rest[0], strict=True)) if rest else {}

    async def _take_off(self) -> None:
        while self._done:
            tokens = self._done[:_DONE_AT_ONCE]
            by_stream: defaultdict[str, list[str]] = defaultdict(list)
            for token in tokens:
                offset, _, stream = token.partition(" ")
                by_stream[stream or channels.CONTEXT_REQUESTS].append(offset)
            pipeline = self._redis.pipeline(transaction=False)
            for stream, offsets in by_stream.items():
                pipeline.xack(stream, channels.CONTEXT_GROUP, *offsets)
                pipeline.xdel(stream, *offsets)
            for answer in await pipeline.execute(raise_on_error=False):
                if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):  # then nothing is left
                    raise answer
            del self._done[: len(tokens)]
            self._held.difference_update(tokens)
