-- Reads the fields of a machine number, and sets:
-- since: the time when the scripts first saw the current term.
-- reign: the current master_replid, the id of the term. Never use master_replid2, the id of the previous term. If the
-- server shows no master_replid, this code returns an error status.
-- Times are ms since 1970, which a Lua number holds exactly.
local key = KEYS[1]
local reign = string.match(info, '\nmaster_replid:(%x+)\r') or ''
if #reign ~= 40 then return {'notmaster'} end
local now = now_ms()
local state = redis.call('HMGET', key, 'reign', 'since', 'longest', 'store', 'node')
--@include here
local held = redis.call('HMGET', key, number .. ':token', number .. ':lapses', number .. ':last')
local since, longest = tonumber(state[2] or now), tonumber(state[3] or 0)
local owner, lapses, last = held[1], tonumber(held[2] or 0), tonumber(held[3] or 0)
if not (since and longest and lapses and last) then return {'corrupt'} end
