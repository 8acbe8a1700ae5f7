--[[
lease: draw up to n numbers for a process that will serve them from its own memory. It grants what `next` would, and tells
in which reign and under which born: by these two the process sees later whether the numbers are still good. With them, and
with backs, `giveback` takes the unused tail.

KEYS[1]  the tag's hash
ARGV[1]  n, how many numbers: 1..2^63-1
ARGV[2]  election window in milliseconds: how long an elected caller may take to load, before another one is elected;
         negative: the caller can't load, and is never elected
ARGV[3]  scheme: the id of the tag's scheme, as the caller knows it; '' or missing: it has none

Returns one of
  {'ok', low, high, fence, born, backs}
                                   the caller alone owns low+1 .. high; high-low is 1..n, less than n at the end of a segment
  {'ok', low, high, fence, born, backs, 'extend', max}
                   the same, and the caller is elected to load the next segment; max ends the present one
  {'exhausted'}    both buffers are used up; nothing changed
  {'empty'}        no hash; nothing changed
  {'fenced'}       the hash belongs to another reign: Redis failed over or went back in time; nothing changed
  {'scheme', id}   the hash's numbers belong to another scheme, '' for none; nothing changed
  {'over', clock}  the period has ended; the server's clock in milliseconds; nothing changed
  {'notmaster'}    this server is no master; nothing changed
  {'corrupt'}      a field is missing, no whole number up to 2^63-1, or contradicts another; nothing changed
  error BADARG     n or the window is no number; nothing changed
]]
local key, n, window, scheme = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] or ''
--@include whole
if not whole(n) or n == '0' or not window then
  return redis.error_reply('BADARG n must be 1..2^63-1, the window milliseconds')
end
--@include reign
--@include buffer
local told = redis.call('HMGET', key, 'born', 'backs')
local born, backs = told[1], told[2] or '0'
if not born or not whole(backs) then return {'corrupt'} end
--@include draw
if next_max or window < 0 or less(high, mark) then return {'ok', cur, high, fence, born, backs} end
--@include now
--@include elect
if not elected then return {'ok', cur, high, fence, born, backs} end
return {'ok', cur, high, fence, born, backs, 'extend', max}
