-- Take up to n numbers: cur+1 .. high are the caller's. At the end of buffer 1 buffer 2 takes its place.
if not less(cur, max) then
  if less(max, cur) then return {'corrupt'} end
  if not next_max then return {'exhausted'} end
  local buffer = redis.call('HMGET', key, 'next_cur', 'next_mark')
  local next_cur, next_mark = buffer[1], buffer[2]
  if not (whole(next_cur) and whole(next_max) and whole(next_mark)) then return {'corrupt'} end
  if less(next_cur, max) or not less(next_cur, next_max) or less(next_max, next_mark) then return {'corrupt'} end
  redis.call('HSET', key, 'cur', next_cur, 'max', next_max, 'mark', next_mark)
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked')
  cur, max, mark, next_max = next_cur, next_max, next_mark, false
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
