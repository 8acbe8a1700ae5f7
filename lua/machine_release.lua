--[[
machine_release: give a machine number back, with the last timestamp that was used: its next holder, even at once,
starts above.

KEYS[1]  the namespace's hash
ARGV[1]  number: the machine number, in plain digits
ARGV[2]  token: the claim's
ARGV[3]  used: the last timestamp, ms since 1970, that numbers were made of

Returns one of
  {'free'}         any process may claim it
  {'lost'}         it is not this token's; nothing changed
  {'notmaster'}    this server is no master, or shows no replication id; nothing changed
  {'corrupt'}      a field that should be a number is none; nothing changed
  error BADARG     an argument that should be a number is none, or the token is empty; nothing changed
]]
local number, token, used = ARGV[1], ARGV[2], ARGV[3]
if not (string.find(number, '^%d+$') and string.find(used, '^%d+$')) or token == '' then
  return redis.error_reply('BADARG a release needs a number, a token and a timestamp')
end
--@include reign
--@include now
--@include machines
if owner ~= token then return {'lost'} end
redis.call('HDEL', key, number .. ':token', number .. ':lapses')
redis.call('HSET', key, number .. ':last', used)
return {'free'}
