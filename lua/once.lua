--[[
once: draw one number for a key of the caller's, and the same one whenever the key comes again.

KEYS[1]  the tag's hash
KEYS[2]  where the key's number is kept, in the same slot
ARGV[1]  election window in milliseconds: how long an elected caller may take to load, before another one is elected;
         negative: the caller can't load, and is never elected
ARGV[2]  scheme: the id of the tag's scheme, as the caller knows it; '': it has none
ARGV[3]  ttl: for how many milliseconds the number is kept, 1..2^63-1
ARGV[4]  seen: the highest number of the tag that the caller has seen; 0: none, or it doesn't mind the order

Returns one of
  {'again', number, scheme}        the key has had this number before, drawn under that scheme, '' for none: a caller
                                   that knows an earlier one has to learn it, to make a value of the number; nothing changed
  {'ok', low, high}                high is the key's number from now on, low is the number before
  {'ok', low, high, 'extend', max} the same, and the caller is elected to load the next segment; max ends the present one
  {'exhausted'}                    both buffers are used up; nothing changed
  {'empty'}                        no hash; nothing changed
  {'fenced'}                       the hash belongs to another reign; nothing changed
  {'scheme', id}                   the hash's numbers belong to another scheme, '' for none; nothing changed
  {'older', low}                   the number would be low + 1, and the caller has seen it, or a later one: this is an
                                   older hash that was put back; nothing changed, and nothing is kept for the key
  {'over', clock}                  the period has ended; the server's clock in milliseconds; nothing changed
  {'notmaster'}                    this server is no master; nothing changed
  {'corrupt'}                      a field, or the key's number, is no whole number up to 2^63-1; nothing changed
  error BADARG                     the window, the ttl or seen is no number; nothing changed
]]
local key, n, window, scheme, ttl, seen = KEYS[1], '1', tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]
--@include whole
if not window or not whole(ttl) or ttl == '0' or not whole(seen) then
  return redis.error_reply('BADARG the window and the ttl must be milliseconds, and seen a number')
end
--@include reign
-- In any reign that it was drawn in: it was no other caller's.
local kept = redis.call('GET', KEYS[2])
if kept then
  local number, under = string.match(kept, '^(%d+):(.*)$')
  if not whole(number) then return {'corrupt'} end
  return {'again', number, under}
end
--@include buffer
-- Before anything is kept: asked again, the key would get the number that was refused.
local low = less(cur, max) and cur or next_max and redis.call('HGET', key, 'next_cur')
if whole(low) and less(low, seen) then return {'older', low} end
--@include draw
redis.call('SET', KEYS[2], high .. ':' .. scheme, 'PX', ttl)
if next_max or window < 0 or less(high, mark) then return {'ok', cur, high} end
--@include now
--@include elect
if not elected then return {'ok', cur, high} end
return {'ok', cur, high, 'extend', max}
