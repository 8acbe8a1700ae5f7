-- Sets `fresh`, a new born (id of the hash): the caller's random word and the time. If the network repeats a call, the
-- copy makes a different born. Then all calls that carry the first born are rejected.
local moment = redis.call('TIME')
fresh = fresh .. '.' .. moment[1] .. '.' .. moment[2]
