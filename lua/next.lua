--[[
next: draw up to n numbers of a tag. The hot path: one round trip, no loop, nothing but this hash is touched.

KEYS[1]  the tag's hash
ARGV[1]  n, how many numbers: 1..2^63-1
ARGV[2]  election window in milliseconds: how long an elected caller may take to load, before another one is elected;
         negative: the caller can't load, and is never elected

Returns one of
  {'ok', low, high}                 the caller alone owns low+1 .. high; high-low is 1..n, less than n at the end of a segment
  {'ok', low, high, 'extend', max}  the same, and the caller is elected to load the next segment; max ends the present one
  {'exhausted'}                     both buffers are used up; nothing changed
  {'empty'}                         no hash; nothing changed
  {'fenced'}                        the hash belongs to another reign: Redis failed over or went back in time; nothing changed
  {'notmaster'}                     this server is no master; nothing changed
  {'corrupt'}                       a field is missing, no whole number up to 2^63-1, or contradicts another; nothing changed
  error BADARG                      n or the window is no number; nothing changed
]]
local key, n, window = KEYS[1], ARGV[1], tonumber(ARGV[2])
--@include whole
if not whole(n) or n == '0' or not window then return redis.error_reply('BADARG n must be 1..2^63-1, the window milliseconds') end
--@include reign
local hash = redis.call('HMGET', key, 'cur', 'max', 'mark', 'fence', 'next_max', 'asked')
local cur, max, mark, fence, next_max, asked = hash[1], hash[2], hash[3], hash[4], hash[5], hash[6]
if not cur and not max then return {'empty'} end
if not fence or #fence ~= 40 or not string.find(info, '\nmaster_replid:' .. fence .. '\r', 1, true) then return {'fenced'} end
if not (whole(cur) and whole(max) and whole(mark)) then return {'corrupt'} end
if not less(cur, max) then
  if less(max, cur) then return {'corrupt'} end
  if not next_max then return {'exhausted'} end
  local buffer = redis.call('HMGET', key, 'next_cur', 'next_mark')
  local next_cur, next_mark = buffer[1], buffer[2]
  if not (whole(next_cur) and whole(next_max) and whole(next_mark)) then return {'corrupt'} end
  if less(next_cur, max) or not less(next_cur, next_max) or less(next_max, next_mark) then return {'corrupt'} end
  redis.call('HSET', key, 'cur', next_cur, 'max', next_max, 'mark', next_mark)
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked')
  cur, max, mark, next_max, asked = next_cur, next_max, next_mark, false, false
end
-- HINCRBY counts in 64-bit C integers and refuses to overflow; its reply would be a Lua number, so cur is read back.
local moved = redis.pcall('HINCRBY', key, 'cur', n)
local overflow = type(moved) == 'table'
-- Refused for another reason, by ACL or for want of memory: taken for an overflow, it would grant the whole segment.
-- tostring, as fakeredis hands over a string that Lua's own functions don't take.
if overflow and not string.find(tostring(moved.err), 'overflow', 1, true) then return moved end
local high = overflow and max or redis.call('HGET', key, 'cur')
if overflow or less(max, high) then
  redis.call('HSET', key, 'cur', max)
  high = max
end
--@include now
if next_max or window < 0 or less(high, mark) then return {'ok', cur, high} end
local now = now_ms()
local since = tonumber(asked or '')
if since and now >= since and now - since <= window then return {'ok', cur, high} end
redis.call('HSET', key, 'asked', now)
return {'ok', cur, high, 'extend', max}
