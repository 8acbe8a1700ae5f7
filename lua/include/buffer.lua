-- Buffer 1, for a draw: out if there is none, if it is of another reign (never master_replid2, which holds the id of the
-- reign before) or of another scheme, if a field is corrupt, or if the tag's period is over by the server's clock. Of what
-- a draw costs beyond its counter, INFO is 1.8 us and each field 0.2 us: so no more is read here than nearly every draw
-- needs.
local hash = redis.call('HMGET', key, 'cur', 'max', 'mark', 'fence', 'next_max', 'scheme')
local cur, max, mark, fence, next_max, found = hash[1], hash[2], hash[3], hash[4], hash[5], hash[6] or ''
if not cur and not max then return {'empty'} end
if not fence or #fence ~= 40 or not string.find(info, '\nmaster_replid:' .. fence .. '\r', 1, true) then return {'fenced'} end
if found ~= scheme then return {'scheme', found} end
if not (whole(cur) and whole(max) and whole(mark)) then return {'corrupt'} end
if scheme ~= '' then
  local till, time = redis.call('HGET', key, 'until'), redis.call('TIME')
  local clock = time[1] .. string.format('%03d', math.floor(time[2] / 1000))
  if not whole(till) then return {'corrupt'} end
  if not less(clock, till) then return {'over', clock} end
end
