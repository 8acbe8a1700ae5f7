--[[
machine_claim: lease a machine number of a namespace, if no process holds it. A claim with the token of the holder is the same
claim: it may be repeated, and gets the same reply. If no reply arrives, the number counts as held until the lease lapses.

KEYS[1]  the hash of the namespace
ARGV[1]  number: the machine number, as digits
ARGV[2]  holder: application.port.ip, shown to people, and recognized after a restart
ARGV[3]  token: a new random value that renewals and the release must send
ARGV[4]  ceiling: the holder issues no timestamp above this one, in ms since 1970
ARGV[5]  lease: duration of the lease without a renewal, in ms
ARGV[6]  margin: for this time a lapsed number isn't leased again, in ms. It is also the most by which clocks may differ
ARGV[7]  first: '1' if this caller has just created the tag, and no other tag uses the namespace. Then a missing hash shows
         that no process can hold a number
ARGV[8]  store: the id of the caller's store

Returns one of
  {'yours', floor}    leased. The holder must issue only timestamps above the floor, in ms since 1970
  {'held', ms}        another process holds it, for up to this many ms; nothing changed
  {'settling', ms}    the hash was missing, or the master's term is new: no claim is granted for this many ms. The start of
                      this time is recorded
  {'ahead', ms}       the ceiling is this many ms above the highest that the server's clock allows; nothing leased
  {'otherstore', id}  the machine numbers of the hash belong to another store; nothing changed
  {'notmaster'}       this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}         a field that should be a number isn't one; nothing changed
  error BADARG        an argument that should be a number isn't one, or the token or the store is empty; nothing changed
]]
local number, holder, token, first, store = ARGV[1], ARGV[2], ARGV[3], ARGV[7], ARGV[8] or ''
local ceiling, lease, margin = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not (string.find(number, '^%d+$') and ceiling and lease and margin) or token == '' or store == '' then
  return redis.error_reply('BADARG a claim needs a number, a token, a ceiling, a lease, a margin and a store')
end
--@include reign
--@include now
--@include machines
if state[4] and state[4] ~= store then return {'otherstore', state[4]} end
--@include settle
if now < since + hold then return {'settling', string.format('%d', since + hold - now)} end
local again = owner == token and redis.call('HGET', key, number .. ':floor')
if again then return {'yours', again} end
if owner and now <= lapses + margin then return {'held', string.format('%d', lapses + margin - now + 1)} end
if now + lease + margin < ceiling then return {'ahead', string.format('%d', ceiling - now - lease - margin)} end
-- Redis may have lost the lease and the ceiling of an earlier holder. But each ceiling is at most lease + margin after the
-- time of its claim or renewal. So that holder used no timestamp after since + hold, the end of the time without claims (see
-- include/settle.lua).
local floor = string.format('%.0f', math.max(last, since + hold))
redis.call('HSET', key, number .. ':holder', holder, number .. ':token', token, number .. ':lapses', now + lease,
  number .. ':last', math.max(floor, ceiling), number .. ':floor', floor, 'store', store)
return {'yours', floor}
