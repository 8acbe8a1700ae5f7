-- Sets `info`. Returns an error status if this server is not a master: a writable replica shows its master's replid.
local info = redis.call('INFO', 'replication')
if not string.find(info, '\nrole:master\r', 1, true) then return {'notmaster'} end
