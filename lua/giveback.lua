--[[
giveback: return the unused rest of a lease, so that these numbers are drawn next. The caller must forget the numbers before
it sends this. If the network repeats the call, or delivers it late, this does no harm (lua/README.md, rule 4). The script
rejects the call if the hash has another born. If born is still the same, `backs` distinguishes a second copy of the call from
the first one, even if the same numbers were drawn again in the meantime.

KEYS[1]  the tag's hash
ARGV[1]  used: the last number of the lease that was issued, or the lease's low if none was issued. The numbers used+1 .. high
         are returned
ARGV[2]  high: the last number of the lease
ARGV[3]  reign: the id of the master's term, which is the fence of the lease
ARGV[4]  born: the id of the hash, from the reply of `lease`
ARGV[5]  backs: how many times numbers had been returned before the lease, from the reply of `lease`

Returns one of
  {'back'}         used+1 .. high are the next numbers to be drawn
  {'spent', why}   these numbers are a gap; nothing changed. The reason is one of
                   'missing': there is no hash;
                   'reign': this is another term of a Redis master, or the hash is from another term;
                   'born': the hash was prepared again since the lease;
                   'cur': the last number drawn isn't high, as others have drawn, or a later segment has begun;
                   'backs': these numbers were returned already, or were followed by too many other returns
  {'notmaster'}    this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}      a field is missing, isn't a whole number up to 2^63-1, or contradicts another field; nothing changed
  error BADARG     used .. high isn't a range of numbers; nothing changed
]]
local used, high, seen_reign, seen_born, seen_backs = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
--@include whole
if not (whole(used) and whole(high)) or not less(used, high) then
  return redis.error_reply('BADARG a tail needs 0 <= used < high <= 2^63-1')
end
--@include reign
--@include hash
if missing then return {'spent', 'missing'} end
if not current or seen_reign ~= reign then return {'spent', 'reign'} end
if born ~= seen_born then return {'spent', 'born'} end
if not top then return {'corrupt'} end
if cur ~= high then return {'spent', 'cur'} end
-- The last number drawn is `high`. So all numbers that were drawn after the lease have been returned. But this may be a
-- late copy of the call: then the lease was returned already, and others may have drawn its numbers again. So the call is
-- accepted in two cases only. 1. No numbers were returned since the lease was drawn: `backs` is the same. 2. Only numbers
-- above the lease were returned since then, one range directly below the other: this series of returns began when `backs`
-- was backs_before, and the lowest number that it reached is backs_low.
local last = seen_backs == backs
if not last and (seen_backs ~= backs_before or less(backs_low, high)) then return {'spent', 'backs'} end
-- cur will be below the threshold again, so a loader that was elected there finds nothing to load. So end its election: the
-- draw that reaches the threshold again elects another loader at once. If the first loader still loads a segment, the segment
-- of the second loader is rejected, and is a gap.
if less(used, mark) then redis.call('HDEL', key, 'asked') end
-- cur can be set back even if buffer 1 has a later segment by now. That segment begins at high + 1, because cur is high, and
-- all numbers drawn from it were returned. So the next draws get used+1 .. high from the lease, then high+1 .. max.
redis.call('HINCRBY', key, 'backs', 1)
redis.call('HSET', key, 'cur', used, 'backs_before', seen_backs, 'backs_low', used)
return {'back'}
