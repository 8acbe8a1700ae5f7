--[[
machine_renew: go on holding a machine number, with a new ceiling. Only what the hash shows is renewed. One that has lapsed
is not, as long as the reign is new: it may have been another process's already, which is forgotten.

KEYS[1]  the namespace's hash
ARGV[1]  number: the machine number, in plain digits
ARGV[2]  token: the claim's
ARGV[3]  ceiling: the holder will issue no timestamp above this one, ms since 1970
ARGV[4]  lease: ms that it lasts from now on without a renewal
ARGV[5]  margin: as in machine_claim

Returns one of
  {'yours', floor} renewed; the holder issues no timestamp up to the floor, ms since 1970, from now on
  {'lost'}         it is or may be another process's: issue nothing any more; nothing renewed
  {'ahead', ms}    the ceiling is this many ms above what this server's clock allows; nothing renewed
  {'notmaster'}    this server is no master, or shows no replication id; nothing changed
  {'corrupt'}      a field that should be a number is none; nothing changed
  error BADARG     an argument that should be a number is none, or the token is empty; nothing changed
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
-- A process that had it in between, and is forgotten, used nothing above the end of the hold.
return {'yours', lapsed and string.format('%.0f', since + hold) or '0'}
