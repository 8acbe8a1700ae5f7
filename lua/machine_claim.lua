--[[
machine_claim: lease one machine number of a namespace, if no process holds it. Sent once: a claim whose reply was lost
looks like another process's, until it lapses.

KEYS[1]  the namespace's hash
ARGV[1]  number: the machine number, in plain digits
ARGV[2]  holder: application.port.ip, shown to people and found again after a restart
ARGV[3]  token: a fresh random value, which renewals and the release carry
ARGV[4]  ceiling: the holder will issue no timestamp above this one, ms since 1970
ARGV[5]  lease: ms that it lasts without a renewal
ARGV[6]  margin: ms that a lapsed number is left alone, and that clocks may differ by
ARGV[7]  first: '1' if this caller has made the tag just now whose own namespace it is, so that no process can hold a number
         of a missing hash
ARGV[8]  store: the id of the caller's store

Returns one of
  {'yours', floor}    leased; the holder issues no timestamp up to the floor, ms since 1970
  {'held', ms}        another process holds it, and may for this many ms; nothing changed
  {'settling', ms}    the reign is new, or the hash was missing: no claim is granted for this many ms; since when is noted
  {'ahead', ms}       the ceiling is this many ms above what this server's clock allows; nothing leased
  {'otherstore', id}  the hash's numbers are leased to users of another store; nothing changed
  {'notmaster'}       this server is no master, or shows no replication id; nothing changed
  {'corrupt'}         a field that should be a number is none; nothing changed
  error BADARG        an argument that should be a number is none, or the token or the store is empty; nothing changed
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
if owner and now <= lapses + margin then return {'held', string.format('%d', lapses + margin - now + 1)} end
if now + lease + margin < ceiling then return {'ahead', string.format('%d', ceiling - now - lease - margin)} end
-- All that a forgotten holder issued lies below the end of the hold, as its ceiling wasn't ahead of the clock either.
local floor = math.max(last, since + hold)
redis.call('HSET', key, number .. ':holder', holder, number .. ':token', token, number .. ':lapses', now + lease,
  number .. ':last', math.max(floor, ceiling), 'store', store)
return {'yours', string.format('%.0f', floor)}
