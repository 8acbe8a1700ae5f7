-- Reads buffer 1, the current segment, for a draw. Returns an error status if buffer 1 is missing or corrupt, if it is
-- from another term or scheme, or if the tag's period is over by the server's clock. Never compare the fence with
-- master_replid2, the id of the previous term: a new master shows it even if it lacks the last draws of that term. INFO takes
-- 1.8 us of a draw and each field 0.2 us, so only fields that nearly every draw needs are read here.
local hash = redis.call('HMGET', key, 'cur', 'max', 'mark', 'fence', 'next_max', 'scheme')
local cur, max, mark, fence, next_max, found = hash[1], hash[2], hash[3], hash[4], hash[5], hash[6] or ''
if not cur and not max then
--@include report
  return {'empty'}
end
if not fence or #fence ~= 40 or not string.find(info, '\nmaster_replid:' .. fence .. '\r', 1, true) then
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
