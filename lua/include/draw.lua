-- Takes up to n numbers: cur+1 .. high belong to the caller. If buffer 1 is used up, buffer 2 replaces it.
if not less(cur, max) then
  if less(max, cur) then return {'corrupt'} end
  if not next_max then
--@include report
    return {'exhausted'}
  end
  local buffer = redis.call('HMGET', key, 'next_cur', 'next_mark')
  local next_cur, next_mark = buffer[1], buffer[2]
  if not (whole(next_cur) and whole(next_max) and whole(next_mark)) then return {'corrupt'} end
  if less(next_cur, max) or not less(next_cur, next_max) or less(next_max, next_mark) then return {'corrupt'} end
  redis.call('HSET', key, 'cur', next_cur, 'max', next_max, 'mark', next_mark)
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked')
  cur, max, mark, next_max = next_cur, next_max, next_mark, false
end
-- HINCRBY counts in 64-bit C integers and rejects an overflow. Its reply is a Lua number (a double), which is exact below
-- 2^53. Above it, cur is read again as a string.
local moved = redis.pcall('HINCRBY', key, 'cur', n)
local overflow = type(moved) == 'table'
-- After an overflow the rest of the segment is granted. So another error, such as a missing permission or no memory,
-- must not be taken for an overflow. tostring: fakeredis returns a string that Lua's own functions do not accept.
if overflow and not string.find(tostring(moved.err), 'overflow', 1, true) then return moved end
local high = overflow and max or moved < 2^53 and string.format('%d', moved) or redis.call('HGET', key, 'cur')
if overflow or less(max, high) then
  redis.call('HSET', key, 'cur', max)
  high = max
end
