--[[
open: before a reservation. Arms the hash for this reign if it is missing or of another one, tells where it stands, and
elects one caller to load the next segment.

KEYS[1]  the tag's hash
ARGV[1]  born: a fresh random value, written if the hash is armed now
ARGV[2]  store: the id of the caller's store
ARGV[3]  election window in milliseconds
ARGV[4]  'claim': stand for election; 'mine': elected already (by `next`), so ask again; 'look': neither

Returns one of
  {'open', reign, born, top, cur, due, elected}
                       due '1': a segment should be loaded (cur has reached the mark, buffer 2 is free);
                       elected '1': by this caller. A load must carry reign and born, and begin at or above top
  {'otherstore', id}   the hash was armed for another store; nothing changed
  {'notmaster'}        this server is no master, or shows no replication id; nothing changed
  {'corrupt'}          a field is missing, no whole number up to 2^63-1, or contradicts another; nothing changed
  error BADARG         the window is no number; nothing changed
]]
local fresh, store_id, window, role = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
--@include whole
if not window then return redis.error_reply('BADARG the window must be milliseconds') end
--@include reign
--@include hash
if not top then return {'corrupt'} end
if store and store ~= store_id then return {'otherstore', store} end
--@include arm
--@include now
if not current or not born or not store then
  arm(top, fresh, store_id)
  cur, max, mark, next_max, born, asked = top, top, top, false, fresh, false
end
local due = not next_max and not less(cur, mark)
local elected = false
if due and role ~= 'look' then
  local now = now_ms()
  local since = tonumber(asked or '')
  elected = role == 'mine' or not (since and now >= since and now - since <= window)
  if elected then redis.call('HSET', key, 'asked', now) end
end
return {'open', reign, born, top, cur, due and '1' or '0', elected and '1' or '0'}
