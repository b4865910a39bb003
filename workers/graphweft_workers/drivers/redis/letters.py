"""Dead letters on Redis: a hash of letters, their order, and the bytes and the app of each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final

from graphweft_contracts import BusUnavailable, DeadLetter, channels
from graphweft_workers.drivers.redis.records import pairs
from graphweft_workers.ports.dead_letters import FIELDS, NO_FIELDS, LettersOfApp, first_letters

_PAGE: Final = 1_000
"""Dead letters of which app and size are read at once."""
_CUT: Final = 100
_CUT_BYTES: Final = 4 * 1024**2
"""Dead letters, and their bytes, whose entries a script cuts off at once: it blocks the server."""
# The entry is the last part of a letter. No text of the parts before it contains the mark: it has quotes.
_WITHOUT_FIELDS: Final = f"""
local found = {{}}
for i = 1, #ARGV do
  local body = redis.call('HGET', KEYS[1], ARGV[i])
  if body then
    local at = string.find(body, '{FIELDS.decode()}', 1, true)
    if at then body = string.sub(body, 1, at - 1) .. '{NO_FIELDS.decode()}' end
    found[#found + 1] = body
  end
end
return found
"""
# Counts the letters of each app. KEYS[3] and KEYS[4] are ``COUNTED_LETTERS`` and ``LETTERS_OF_APPS``.
_COUNTING: Final = """
local function forget(id)
  local was = redis.call('HGET', KEYS[3], id)
  if not was then return end
  local size, app = string.match(was, '^(%d+) (.*)$')
  redis.call('HDEL', KEYS[3], id)
  if redis.call('HINCRBY', KEYS[4], 'n:' .. app, -1) <= 0 then
    redis.call('HDEL', KEYS[4], 'n:' .. app, 'b:' .. app)
  else
    redis.call('HINCRBY', KEYS[4], 'b:' .. app, -size)
  end
end
local function count(id, body, app)
  forget(id)
  redis.call('HSET', KEYS[3], id, #body .. ' ' .. app)
  redis.call('HINCRBY', KEYS[4], 'n:' .. app, 1)
  redis.call('HINCRBY', KEYS[4], 'b:' .. app, #body)
end
"""
_KEYS: Final = (
    channels.DEAD_LETTERS,
    channels.DEAD_LETTER_ORDER,
    channels.COUNTED_LETTERS,
    channels.LETTERS_OF_APPS,
)
"""The keys of the scripts that write dead letters."""
# The letter must be unchanged: another process may have retried or replaced it.
_REQUEUE: Final = f"""{_COUNTING}
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
local at = 7
while at <= #ARGV do
  local size = tonumber(ARGV[at])
  redis.call('XADD', KEYS[5], '*', unpack(ARGV, at + 1, at + size))
  at = at + size + 1
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
forget(ARGV[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
  redis.call('ZADD', KEYS[2], ARGV[5], ARGV[3])
  count(ARGV[3], ARGV[4], ARGV[6])
end
return 1
"""
_PUT: Final = f"""{_COUNTING}
for i = 1, #ARGV, 4 do
  redis.call('ZREM', KEYS[2], ARGV[i])
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[2], ARGV[i + 2], ARGV[i])
  count(ARGV[i], ARGV[i + 1], ARGV[i + 3])
end
"""
_EXTEND: Final = f"""{_COUNTING}
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
count(ARGV[1], ARGV[3], ARGV[5])
return 1
"""


class RedisLetters:
    """``DeadLetters`` on one Redis server.

    ``call`` runs a command, and ``stream`` returns the stream of a partition; both raise ``BusUnavailable``.
    """

    def __init__(self, call: Callable[..., Awaitable[Any]], stream: Callable[[int], Awaitable[str]]) -> None:
        self._call = call
        self._stream = stream

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """See ``DeadLetters.put``."""
        given = [part for each in letters for part in (each.id, _body(each), each.time.timestamp(), each.app_id or "")]
        try:
            await self._call("EVAL", _PUT, len(_KEYS), *_KEYS, *given)
        except BusUnavailable as error:
            raise type(error)(f"a dead letter cannot be written: {error}") from error

    async def extend(self, letter: DeadLetter | None, longer: DeadLetter) -> bool:
        """See ``DeadLetters.extend``."""

        def script(before: bytes | str) -> Awaitable[Any]:
            given = (longer.id, before, _body(longer), longer.time.timestamp(), longer.app_id or "")
            return self._call("EVAL", _EXTEND, len(_KEYS), *_KEYS, *given)

        return bool(await script("")) if letter is None else await self._in_place_of(letter, script)

    async def by_app(self) -> Mapping[str, LettersOfApp]:
        """See ``DeadLetters.by_app``."""
        counts = pairs(await self._call("HGETALL", channels.LETTERS_OF_APPS))
        read = {name.decode(): int(value) for name, value in counts}
        return {
            name[2:]: LettersOfApp(count=value, size=read.get(f"b:{name[2:]}", 0))
            for name, value in read.items()
            if name.startswith("n:")
        }

    async def read(
        self, *, limit: int, app_id: str | None = None, size: int | None = None, whole: bool = True,
        ids: Collection[str] | None = None,
    ) -> Sequence[DeadLetter]:  # fmt: skip
        """See ``DeadLetters.read``."""
        if ids is not None and size is None:
            named = await self._bodies([each.encode() for each in ids])
            return first_letters(sorted(named, key=lambda each: each.time), limit, app_id, size, whole=whole)
        if ids is None and app_id is None and size is None and whole:
            return await self._bodies(await self._call("ZRANGE", channels.DEAD_LETTER_ORDER, 0, limit - 1))
        chosen = await self._chosen(limit, app_id, size, ids)
        found = await (self._bodies([letter_id for letter_id, _ in chosen]) if whole else self._read_cut(chosen))
        return [letter for letter in found if app_id in (None, letter.app_id)]

    async def requeue(
        self, letter: DeadLetter, entries: Sequence[Mapping[bytes, bytes]], rest: DeadLetter | None = None
    ) -> bool:
        """See ``DeadLetters.requeue``. One script blocks the server: page long ranges by ``rest``."""
        partition, _, _ = letter.position.partition(":")
        keys = (*_KEYS, await self._stream(int(partition)))
        arguments: list[Any] = ["", "", "", ""]
        if rest:
            arguments = [rest.id, _body(rest), rest.time.timestamp(), rest.app_id or ""]
        for entry in entries:
            arguments.append(2 * len(entry))
            arguments.extend(part for item in entry.items() for part in item)

        def script(before: bytes | str) -> Awaitable[Any]:
            return self._call("EVAL", _REQUEUE, len(keys), *keys, letter.id, before, *arguments)

        return await self._in_place_of(letter, script)

    async def _chosen(
        self, limit: int, app_id: str | None, size: int | None, ids: Collection[str] | None
    ) -> list[tuple[bytes, int]]:
        """Return id and bytes of the first letters, of ``ids``, that are counted for an app, or not counted at all."""
        chosen: list[tuple[bytes, int]] = []
        left = None if ids is None else {each.encode() for each in ids}
        start = total = 0
        while len(chosen) < limit and left != set():
            page = await self._call("ZRANGE", channels.DEAD_LETTER_ORDER, start, start + _PAGE - 1)
            if not page:
                break
            start += len(page)
            if left is not None:
                page = [each for each in page if each in left]
                left.difference_update(page)
            counted: Sequence[Any] = await self._call("HMGET", channels.COUNTED_LETTERS, *page) if page else ()
            for letter_id, each in zip(page, counted, strict=True):
                bytes_, _, app = (each or b"0 ").decode(errors="replace").partition(" ")
                if each is not None and app_id not in (None, app):  # older versions did not count letters
                    continue
                total += int(bytes_)
                if len(chosen) == limit or (chosen and size is not None and total > size):
                    return chosen
                chosen.append((letter_id, int(bytes_)))
        return chosen

    async def _bodies(self, ids: Sequence[bytes]) -> list[DeadLetter]:
        if not ids:
            return []
        bodies = await self._call("HMGET", channels.DEAD_LETTERS, *ids)
        return [DeadLetter.model_validate_json(body) for body in bodies if body is not None]

    async def _read_cut(self, chosen: Sequence[tuple[bytes, int]]) -> list[DeadLetter]:
        """Return the letters without their entries, which stay on the server."""
        found: list[DeadLetter] = []
        page: list[bytes] = []
        total = 0
        for letter_id, bytes_ in chosen:
            if page and (len(page) == _CUT or total + bytes_ > _CUT_BYTES):
                found += await self._cut(page)
                page, total = [], 0
            page.append(letter_id)
            total += bytes_
        return found + (await self._cut(page) if page else [])

    async def _cut(self, ids: Sequence[bytes]) -> list[DeadLetter]:
        bodies = await self._call("EVAL_RO", _WITHOUT_FIELDS, 1, channels.DEAD_LETTERS, *ids)
        return [DeadLetter.model_validate_json(body) for body in bodies]

    async def _in_place_of(self, letter: DeadLetter, script: Callable[[bytes | str], Awaitable[Any]]) -> bool:
        """Run a script that compares a letter's stored text, which another version may have written differently."""
        if await script(_body(letter)):
            return True
        written = await self._call("HGET", channels.DEAD_LETTERS, letter.id)
        if written is None or DeadLetter.model_validate_json(written) != letter:
            return False
        return bool(await script(written))


def _body(letter: DeadLetter) -> str:
    return letter.model_dump_json(exclude_none=True)
