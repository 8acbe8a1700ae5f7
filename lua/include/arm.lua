-- arm(at, born, store, scheme, until): prepare the hash for the current term, without numbers. The hash gets a new born
-- (its id), this scheme, and the end of this period. The first number that it can issue is at + 1. The fence is deleted
-- first, with all that must not outlive it: if HSET is denied then, every script rejects the hash, and `open` prepares it
-- again.
local function arm(at, fresh, store_id, new_scheme, new_till)
  redis.call('HDEL', key, 'fence', 'node', 'next_cur', 'next_max', 'next_mark', 'asked', 'scheme', 'until',
    'backs', 'backs_before', 'backs_low')
  if new_scheme ~= '' then redis.call('HSET', key, 'scheme', new_scheme, 'until', new_till) end
  redis.call('HSET', key, 'cur', at, 'max', at, 'mark', at, 'fence', reign, 'born', fresh, 'store', store_id,
    unpack(here and {'node', here} or {}))
end
