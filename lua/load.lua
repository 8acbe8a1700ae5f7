--[[
load: put a segment (low, high] that was reserved in the store into the hash. It is sent only once, whatever the reply is. If
the network repeats the call, the copy is rejected: the hash has had numbers above low, or the hash has another born (id).

KEYS[1]  the tag's hash
ARGV[1]  low: the number before the first one of the segment
ARGV[2]  high: the last number of the segment, above low
ARGV[3]  mark: the threshold: the number whose draw requests the segment after this one
ARGV[4]  reign: the id of the master's term, from the reply of `open`
ARGV[5]  born: the id of the hash, from the reply of `open`

Returns one of
  {'current'}        loaded into buffer 1, which was used up
  {'next'}           loaded into buffer 2
  {'full'}           both buffers hold numbers; nothing changed
  {'stale', why}     rejected; nothing changed. The reason is one of
                     'missing': there is no hash;
                     'reign': this is another term of a Redis master, or the hash is from another term;
                     'born': the hash was prepared again since `open`;
                     'below': the hash has had numbers above low
  {'notmaster'}      this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}        a field is missing, isn't a whole number up to 2^63-1, or contradicts another field; nothing changed
  error BADARG       (low, high] isn't a segment; nothing changed
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
