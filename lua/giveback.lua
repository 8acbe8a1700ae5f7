--[[
giveback: the unused tail of a lease comes back into circulation, and is forgotten before this is sent. Safe however late it
comes, and however often, as long as born is the hash's own (lua/README.md, rule 4): `backs` tells a second copy from the
first one, even if others have drawn up to exactly the lease's end in the meantime.

KEYS[1]  the tag's hash
ARGV[1]  used: the last number of the lease that was used, or the lease's low if none was; used+1 .. high come back
ARGV[2]  high: the last number of the lease
ARGV[3]  reign: the lease's fence
ARGV[4]  born: the lease's born
ARGV[5]  backs: the lease's backs

Returns one of
  {'back'}         used+1 .. high are the next numbers to be drawn
  {'spent', why}   they are a gap. 'missing': no hash; 'reign': another master rules, or the hash is of another reign;
                   'born': the hash was armed again since; 'cur': it stands elsewhere than at high, as others have drawn, or
                   a later segment has begun; 'backs': these have come back already, or more than one row of returns has
                   since the lease was drawn; nothing changed
  {'notmaster'}    this server is no master, or shows no replication id; nothing changed
  {'corrupt'}      a field is missing, no whole number up to 2^63-1, or contradicts another; nothing changed
  error BADARG     the tail is none; nothing changed
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
-- The lease is the last draw that has not come back if cur never sank below its end since: nothing has come back (backs), or
-- only what was drawn after it. The last row of returns began at backs_before, and has come down to backs_low.
local last = seen_backs == backs
if not last and (seen_backs ~= backs_before or less(backs_low, high)) then return {'spent', 'backs'} end
-- Buffer 1 may be a later segment by now, if it begins at high and all that was drawn of it is back: the tail then stands
-- before it, and all of used+1 .. max is the lease's own or not yet drawn.
redis.call('HINCRBY', key, 'backs', 1)
redis.call('HSET', key, 'cur', used, 'backs_before', seen_backs, 'backs_low', used)
-- A loader elected at the mark finds nothing due now and ends: the draw that reaches the mark again elects another one,
-- at once. If the first did load after all, the second one's load is refused: a gap.
if less(used, mark) then redis.call('HDEL', key, 'asked') end
return {'back'}
