-- info, and out unless this server is a master: a writable replica shows its master's replid, so role is asked too.
local info = redis.call('INFO', 'replication')
if not string.find(info, '\nrole:master\r', 1, true) then return {'notmaster'} end
