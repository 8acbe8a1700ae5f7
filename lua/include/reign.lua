-- Sets `info`, the reply of INFO. Returns an error status if this server is not a master: the fence does not detect a
-- writable replica, because the replica shows the replication id of its master.
local info = redis.call('INFO', 'replication')
if not string.find(info, '\nrole:master\r', 1, true) then return {'notmaster'} end
