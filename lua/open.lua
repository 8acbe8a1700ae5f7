--[[
open: prepare the hash for a reservation. If the hash is missing or from another term of a Redis master, it is prepared for
the current term, without numbers. The reply has the state of the hash. One caller is elected to load the next segment.

KEYS[1]  the tag's hash
ARGV[1]  born: a new random word. If the hash is prepared now, the time is added to it
ARGV[2]  store: the id of the caller's store
ARGV[3]  election window in milliseconds, with decimals that name the caller, as in `next`
ARGV[4]  'claim': elect me if nobody is elected, or if I am: by a draw, or by a claim whose reply I lost; 'look': don't elect
         me; 'resign': if I am elected, I can't load, so elect the next caller that claims
ARGV[5]  scheme: the id of the tag's scheme; '' or missing: no scheme
ARGV[6]  until: only with a scheme. The end of its period, if the hash is prepared now, in milliseconds of the server's clock;
         0: not known yet; 2^63-1: there are no periods

Returns one of
  {'open', reign, born, top, cur, due, elected}
                       due '1': a segment should be loaded, as cur has reached the threshold and buffer 2 is free;
                       elected '1': this caller should load it. The load must send reign and born, and start at or above top
  {'open', reign, born, top, cur, due, elected, clock}
                       the same, with due '1': the period has ended by the server's clock, in milliseconds. Before a segment
                       is loaded, `floor` must skip to the end of that period
  {'otherscheme', id}  the numbers of the hash belong to another scheme, '' for none, in any term; nothing changed
  {'otherstore', id}   the hash belongs to another store; nothing changed
  {'notmaster'}        this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}          a field is missing, isn't a whole number up to 2^63-1, or contradicts another field, or `store` isn't the
                       id of a store; nothing changed
  error BADARG         the window or `until` isn't a number; nothing changed
]]
local fresh, store_id, election, role, own, own_till = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] or '', ARGV[6]
local window = tonumber(election)
--@include whole
if not window or own ~= '' and not whole(own_till) then
  return redis.error_reply('BADARG the window and `until` must be milliseconds')
end
--@include reign
--@include hash
--@include owner
if not top then return {'corrupt'} end
if store and store ~= store_id then return {'otherstore', store} end
-- Check the scheme even if the hash is from an earlier term. If the schemes differ, the caller's store may have gone back in
-- time, to an older scheme. If the hash were now prepared for that scheme, this could not be detected any more.
if not missing and scheme ~= own then return {'otherscheme', scheme} end
--@include fresh
--@include arm
--@include now
if not current or not born or not store then
  arm(top, fresh, store_id, own, own_till)
  cur, max, mark, next_max, born, asked, till = top, top, top, false, fresh, false, own_till
elseif here and not node then
  redis.call('HSET', key, 'node', here) -- an older version prepared the hash
end
local clock = string.format('%.0f', now_ms())
local over = own ~= '' and not less(clock, till)
local due = over or not next_max and not less(cur, mark)
--@include elect
local mine = string.match(asked or '', '%.0000%d+$') == claimant
local elected = false
if role == 'resign' then
  if mine then redis.call('HDEL', key, 'asked') end
elseif due and role ~= 'look' then
  elected = elect(not (mine and claimant) and asked)
end
if over then return {'open', reign, born, top, cur, due and '1', elected and '1' or '0', clock} end
return {'open', reign, born, top, cur, due and '1' or '0', elected and '1' or '0'}
