--[[
load: put the segment (low, high], reserved in the store, into the hash. Sent once, whatever the reply. A copy that the
network makes of it is refused: the hash has seen numbers above low, or was armed again since, under another born.

KEYS[1]  the tag's hash
ARGV[1]  low: the number before the segment's first
ARGV[2]  high: its last number, above low
ARGV[3]  mark: the number whose draw asks for the segment after this one
ARGV[4]  reign, as `open` told it
ARGV[5]  born, as `open` told it

Returns one of
  {'current'}        loaded into buffer 1, which was used up
  {'next'}           loaded into buffer 2
  {'full'}           both buffers hold numbers; nothing changed
  {'stale', why}     'missing': no hash; 'reign': another master rules, or the hash is of another reign; 'born': the hash
                     was armed again since; 'below': the hash has seen numbers above low; nothing changed
  {'notmaster'}      this server is no master, or shows no replication id; nothing changed
  {'corrupt'}        a field is missing, no whole number up to 2^63-1, or contradicts another; nothing changed
  error BADARG       the segment is none; nothing changed
]]
local low, high, segment_mark, seen_reign, seen_born = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
--@include whole
if not (whole(low) and whole(high) and whole(segment_mark)) or not less(low, high)
  or not less(low, segment_mark) or less(high, segment_mark) then
  return redis.error_reply('BADARG a segment needs 0 <= low < mark <= high <= 2^63-1')
end
--@include reign
--@include hash
if missing then return {'stale', 'missing'} end
if not current or seen_reign ~= reign then return {'stale', 'reign'} end
if born ~= seen_born then return {'stale', 'born'} end
if not top then return {'corrupt'} end
if less(low, top) then return {'stale', 'below'} end
if next_max then return {'full'} end
redis.call('HDEL', key, 'asked')
if less(cur, max) then
  redis.call('HSET', key, 'next_cur', low, 'next_max', high, 'next_mark', segment_mark)
  return {'next'}
end
redis.call('HSET', key, 'cur', low, 'max', high, 'mark', segment_mark)
return {'current'}
