--[[
lease: draw up to n numbers that a process will issue from its own memory. It grants the same numbers as `next`. It also
returns the fence and born of the hash, so that the process can check later whether the numbers are still valid. With
these and backs, `giveback` returns the unused rest of the lease.

KEYS[1]  the tag's hash
ARGV[1]  n: how many numbers, 1..2^63-1
ARGV[2]  election window in milliseconds: the time that an elected caller has to load a segment before another one is
         elected. Decimals name the caller: .0000 and digits of its own, with which `open` recognizes it. A negative number:
         the caller can't load, and is never elected. Instead, a draw that reaches the threshold, or gets no number because
         no segment is left, publishes the tag's key on the channel `{prefix}:due`
ARGV[3]  scheme: the id of the tag's scheme, as the caller knows it; '' or missing: no scheme

Returns one of
  {'ok', low, high, fence, born, backs}
                   the numbers low+1 .. high belong to the caller. There are 1..n of them: fewer than n at the end of a segment
  {'ok', low, high, fence, born, backs, 'extend', max}
                   the same, and the caller is elected to load the next segment; the current one ends at max
  {'exhausted'}    both buffers are used up; nothing changed
  {'empty'}        there is no hash; nothing changed
  {'fenced'}       the hash is from another term of a Redis master: Redis failed over, or its data is older now; nothing changed
  {'scheme', id}   the numbers of the hash belong to another scheme, '' for none; nothing changed
  {'over', clock}  the period has ended; clock is the server's time in milliseconds; nothing changed
  {'notmaster'}    this server isn't a master; nothing changed
  {'corrupt'}      a field is missing, isn't a whole number up to 2^63-1, or contradicts another field; nothing changed
  error BADARG     n or the window isn't a number; nothing changed
]]
local key, n, election, scheme = KEYS[1], ARGV[1], ARGV[2], ARGV[3] or ''
local window = tonumber(election)
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
if next_max or less(high, mark) or window < 0 and not less(cur, mark) then return {'ok', cur, high, fence, born, backs} end
if window < 0 then
--@include report
  return {'ok', cur, high, fence, born, backs}
end
--@include now
--@include elect
if not elect(redis.call('HGET', key, 'asked')) then return {'ok', cur, high, fence, born, backs} end
return {'ok', cur, high, fence, born, backs, 'extend', max}
