"""Scripts that write dead letters on Redis, and count those of each app."""

from __future__ import annotations

from typing import Final

from graphweft_contracts import channels

# Counts the letters of each app. KEYS[3] and KEYS[4] are ``COUNTED_LETTERS`` and ``LETTERS_OF_APPS``.
COUNTING: Final = """
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
LETTER_KEYS: Final = (
    channels.DEAD_LETTERS,
    channels.DEAD_LETTER_ORDER,
    channels.COUNTED_LETTERS,
    channels.LETTERS_OF_APPS,
)
"""The keys of the scripts that write dead letters."""
# The letter must be unchanged: another process may have retried or replaced it.
REQUEUE_LETTER: Final = f"""{COUNTING}
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
PUT_LETTERS: Final = f"""{COUNTING}
for i = 1, #ARGV, 4 do
  redis.call('ZREM', KEYS[2], ARGV[i])
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[2], ARGV[i + 2], ARGV[i])
  count(ARGV[i], ARGV[i + 1], ARGV[i + 3])
end
"""
EXTEND_LETTER: Final = f"""{COUNTING}
if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
count(ARGV[1], ARGV[3], ARGV[5])
return 1
"""
