-- arm(at, born, store): the hash holds no numbers any more, only the floor `at`, in this reign, under a fresh born.
local function arm(at, fresh, store_id)
  redis.call('HSET', key, 'cur', at, 'max', at, 'mark', at, 'fence', reign, 'born', fresh, 'store', store_id)
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked')
end
