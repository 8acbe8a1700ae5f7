--[[
machine_renew: extend the lease of a machine number, with a new ceiling. Only a lease in the hash is extended. A lapsed lease
is not extended while the master's term is new: since the lease lapsed, another process may have had the number.

KEYS[1]  the hash of the namespace
ARGV[1]  number: the machine number, as digits
ARGV[2]  token: that of the claim
ARGV[3]  ceiling: the holder issues no timestamp above this one, in ms since 1970
ARGV[4]  lease: duration of the lease from now on, without a renewal, in ms
ARGV[5]  margin: as in machine_claim

Returns one of
  {'yours', floor} extended. From now on the holder must issue only timestamps above the floor, in ms since 1970
  {'lost'}         another process has the number, or may have it: make no more numbers with it; nothing extended
  {'ahead', ms}    the ceiling is this many ms above the highest that the server's clock allows; nothing extended
  {'notmaster'}    this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}      a field that should be a number isn't one; nothing changed
  error BADARG     an argument that should be a number isn't one, or the token is empty; nothing changed
]]
local number, token, first = ARGV[1], ARGV[2], ''
local ceiling, lease, margin = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if not (string.find(number, '^%d+$') and ceiling and lease and margin) or token == '' then
  return redis.error_reply('BADARG a renewal needs a number, a token, a ceiling, a lease and a margin')
end
--@include reign
--@include now
--@include machines
--@include settle
local lapsed = lapses < now
if owner ~= token or (lapsed and now < since + hold) then return {'lost'} end
if now + lease + margin < ceiling then return {'ahead', string.format('%d', ceiling - now - lease - margin)} end
redis.call('HSET', key, number .. ':lapses', now + lease, number .. ':last', math.max(last, ceiling))
-- If this lease had lapsed, another process may have leased the number since, and Redis may have lost that second lease. The
-- other process used no timestamp after since + hold, the end of the time without claims (see include/settle.lua).
return {'yours', lapsed and string.format('%.0f', since + hold) or '0'}
