--[[
floor: skip all numbers up to `at`, for ever. Numbers in the hash that are above `at` stay. Each call writes a new born (id
of the hash). So a `load` that was prepared before this call is rejected. A hash is never deleted: call this script
instead.

KEYS[1]  the tag's hash
ARGV[1]  at: the numbers up to this one are skipped, 0..2^63-1
ARGV[2]  born: a new random word, to which the time is added
ARGV[3]  store: the id of the caller's store
ARGV[4]  'keep': reject a corrupt hash; 'repair': replace a corrupt hash
ARGV[5]  scheme: the id of the tag's scheme from now on; '-': no scheme; '' or missing: leave it as it is. Numbers that were
         loaded under another scheme are dropped. One exception: the numbers stay if the old scheme turns counters into the
         same values. Ids have the form turn-way or turn-way-...: if the new id has the same way and a higher turn, the values
         are the same
ARGV[6]  until: only with a scheme. The end of its period in milliseconds of the server's clock; 2^63-1: there are no periods

Returns one of
  {'floored', cur, top, cur_before, top_before}   done; the last two are '' if the hash was missing or corrupt
  {'otherstore', id}   the hash belongs to another store; nothing changed
  {'notmaster'}        this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}          a field is missing, isn't a whole number up to 2^63-1, or contradicts another field, or `store` isn't the
                       id of a store; nothing changed
  error BADARG         `at`, or `until` with a scheme, isn't a whole number up to 2^63-1; nothing changed
]]
local at, fresh, store_id, manner, own, own_till = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or '', ARGV[6]
--@include whole
if not whole(at) or own ~= '' and not whole(own_till) then
  return redis.error_reply('BADARG at and `until` must be 0..2^63-1')
end
--@include reign
--@include hash
--@include owner
if not top and manner ~= 'repair' then return {'corrupt'} end
if store and store ~= store_id then return {'otherstore', store} end
--@include fresh
--@include arm
local cur_before, top_before = not missing and top and cur or '', not missing and top or ''
if own == '' then own, own_till = scheme, whole(till) and till or '0' end
if own == '-' then own = '' end
local turn, way = string.match(scheme, '^(%d+)%-([^%-]+)')
local own_turn, own_way = string.match(own, '^(%d+)%-([^%-]+)')
local same = scheme == own or way and way == own_way and less(turn, own_turn)
if not current or not top or not same or not less(at, top) then
  local highest = top and less(at, top) and top or at
  arm(highest, fresh, store_id, own, own_till)
  return {'floored', highest, highest, cur_before, top_before}
end
if not less(at, max) then
  cur, max, mark = next_cur, next_max, next_mark
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark')
end
if less(cur, at) then cur = at end
redis.call('HDEL', key, 'asked')
redis.call('HSET', key, 'cur', cur, 'max', max, 'mark', mark, 'born', fresh, 'store', store_id)
if own ~= '' then redis.call('HSET', key, 'scheme', own, 'until', own_till) end
return {'floored', cur, top, cur_before, top_before}
