--[[
once: draw one number for an idempotency key. Calls with the same key return the same number.

KEYS[1]  the tag's hash
KEYS[2]  the Redis key that keeps the number, in the same slot
ARGV[1]  election window in milliseconds: the time that an elected caller has to load a segment before another one is
         elected. Decimals name the caller: .0000 and digits of its own, with which `open` recognizes it. A negative number:
         the caller can't load, and is never elected. Instead, a draw that reaches the threshold, or gets no number because
         no segment is left, publishes the tag's key on the channel `{prefix}:due`
ARGV[2]  scheme: the id of the tag's scheme, as the caller knows it; '': no scheme
ARGV[3]  ttl: the time for which the number is kept, in milliseconds, 1..2^63-1
ARGV[4]  seen: the highest number of the tag that the caller has seen; 0: none, or the order doesn't matter to it

Returns one of
  {'again', number, scheme}        the key has this number already. It was drawn under this scheme, '' for none: if the
                                   caller knows an earlier scheme, it must read the tag's record first; nothing changed
  {'ok', low, high}                high is the number of the key from now on; low is the number before it
  {'ok', low, high, 'extend', max} the same, and the caller is elected to load the next segment; the current one ends at max
  {'exhausted'}                    both buffers are used up; nothing changed
  {'empty'}                        there is no hash; nothing changed
  {'fenced'}                       the hash is from another term of a Redis master; nothing changed
  {'scheme', id}                   the numbers of the hash belong to another scheme, '' for none; nothing changed
  {'older', low}                   the next number, low + 1, isn't above seen, so an older hash was put back; nothing changed,
                                   and nothing is kept for the key
  {'over', clock}                  the period has ended; clock is the server's time in milliseconds; nothing changed
  {'notmaster'}                    this server isn't a master; nothing changed
  {'corrupt'}                      a field, or the number of the key, isn't a whole number up to 2^63-1; nothing changed
  error BADARG                     the window, the ttl or seen isn't a number; nothing changed
]]
local key, n, election, scheme, ttl, seen = KEYS[1], '1', ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local window = tonumber(election)
--@include whole
if not window or not whole(ttl) or ttl == '0' or not whole(seen) then
  return redis.error_reply('BADARG the window and the ttl must be milliseconds, and seen a number')
end
--@include reign
-- Read the key before the fence is checked: even if the key has got its number in an earlier term, it keeps the number.
local kept = redis.call('GET', KEYS[2])
if kept then
  local number, under = string.match(kept, '^(%d+):(.*)$')
  if not whole(number) then return {'corrupt'} end
  return {'again', number, under}
end
--@include buffer
-- `low` is the number before the next one. Check it before the next number is stored for the idempotency key.
-- Otherwise a repeated call would return a rejected number.
local low = less(cur, max) and cur or next_max and redis.call('HGET', key, 'next_cur')
if whole(low) and less(low, seen) then return {'older', low} end
--@include draw
redis.call('SET', KEYS[2], high .. ':' .. scheme, 'PX', ttl)
if next_max or less(high, mark) or window < 0 and not less(cur, mark) then return {'ok', cur, high} end
if window < 0 then
--@include report
  return {'ok', cur, high}
end
--@include now
--@include elect
if not elect(redis.call('HGET', key, 'asked')) then return {'ok', cur, high} end
return {'ok', cur, high, 'extend', max}
