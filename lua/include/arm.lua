-- arm(at, born, store, scheme, until): the hash holds no numbers any more, only the floor `at`, in this reign, under a fresh
-- born, for this scheme and up to the end of this period, and nothing has come back of what is drawn from now on.
local function arm(at, fresh, store_id, new_scheme, new_till)
  redis.call('HSET', key, 'cur', at, 'max', at, 'mark', at, 'fence', reign, 'born', fresh, 'store', store_id)
  redis.call('HDEL', key, 'next_cur', 'next_max', 'next_mark', 'asked', 'scheme', 'until',
    'backs', 'backs_before', 'backs_low')
  if new_scheme ~= '' then redis.call('HSET', key, 'scheme', new_scheme, 'until', new_till) end
end
