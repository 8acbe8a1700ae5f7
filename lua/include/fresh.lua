-- Sets `fresh`, a new born for the hash: the caller's random word and the time. If the network repeats a call, the copy
-- gets a different born. So all calls that carry the first born are rejected.
local moment = redis.call('TIME')
fresh = fresh .. '.' .. moment[1] .. '.' .. moment[2]
