-- Reads buffer 1, the current segment, for a draw. Returns an error status if buffer 1 is missing or corrupt, if it is
-- from another term or scheme, or if the tag's period is over by the server's clock. INFO takes 1.8 us of a draw and each
-- field 0.2 us, so only fields that nearly every draw needs are read here.
local hash = redis.call('HMGET', key, 'cur', 'max', 'mark', 'fence', 'next_max', 'scheme', 'node')
local cur, max, mark, fence, next_max, found, node = hash[1], hash[2], hash[3], hash[4], hash[5], hash[6] or '', hash[7]
if not cur and not max then
--@include report
  return {'empty'}
end
--@include fenced
if fenced then
--@include report
  return {'fenced'}
end
if found ~= scheme then return {'scheme', found} end
if not (whole(cur) and whole(max) and whole(mark)) then return {'corrupt'} end
if scheme ~= '' then
  local till, time = redis.call('HGET', key, 'until'), redis.call('TIME')
  local clock = time[1] .. string.format('%03d', math.floor(time[2] / 1000))
  if not whole(till) then return {'corrupt'} end
  if not less(clock, till) then
--@include report
    return {'over', clock}
  end
end
