-- fresh: the born of this arming. The caller's word is random; with the time it is another one each time that a copy of the
-- same message comes, so that nothing that was sent under the first is let in again.
local moment = redis.call('TIME')
fresh = fresh .. '.' .. moment[1] .. '.' .. moment[2]
