--[[
machine_release: return a machine number, with the last timestamp that was used. The next holder starts above it.

KEYS[1]  the hash of the namespace
ARGV[1]  number: the machine number, as digits
ARGV[2]  token: that of the claim
ARGV[3]  used: the last timestamp with which the holder has made numbers, in ms since 1970

Returns one of
  {'free'}         any process can claim the machine number now
  {'lost'}         the machine number doesn't belong to this token; nothing changed
  {'notmaster'}    this server isn't a master, or shows no replication id; nothing changed
  {'corrupt'}      a field that should be a number isn't one; nothing changed
  error BADARG     an argument that should be a number isn't one, or the token is empty; nothing changed
]]
local number, token, used = ARGV[1], ARGV[2], ARGV[3]
if not (string.find(number, '^%d+$') and string.find(used, '^%d+$')) or token == '' then
  return redis.error_reply('BADARG a release needs a number, a token and a timestamp')
end
--@include reign
--@include now
--@include machines
if owner ~= token then return {'lost'} end
redis.call('HDEL', key, number .. ':token', number .. ':lapses', number .. ':floor')
redis.call('HSET', key, number .. ':last', used)
return {'free'}
