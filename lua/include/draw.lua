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
  -- Delete first. If HSET is denied then, buffer 2 is a gap. In the other order, both buffers would have the same numbers.
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked')
  redis.call('HSET', key, 'cur', next_cur, 'max', next_max, 'mark', next_mark)
  cur, max, mark, next_max = next_cur, next_max, next_mark, false
end
-- cur moves by one write, so that cur is never above max, even if another command of this script is denied. HINCRBY counts in
-- 64-bit integers. Its reply is a Lua number (a double), which is exact below 2^53. Above it, cur is read again as a string.
local high
if n == '1' then
  local moved = redis.call('HINCRBY', key, 'cur', n)
  high = moved < 2^53 and string.format('%d', moved) or redis.call('HGET', key, 'cur')
else
--@include plus
  high = plus(cur, n)
  if less(max, high) then high = max end
  redis.call('HSET', key, 'cur', high)
end
