--[[
read: return the fields of a tag's hash, and whether it is from the current term of the Redis master. It changes nothing.

KEYS[1]  the tag's hash

Returns one of
  {'current', cur, max, mark, next_cur, next_max, next_mark, backs, backs_before, backs_low, fence, born, store, scheme}
                   the hash is from the current term. A field that is absent is nil
  {'fenced', ...}  the same fields. But the hash is missing or from another term, and no number can be drawn from it
]]
local key = KEYS[1]
local info = redis.call('INFO', 'replication')
local hash = redis.call('HMGET', key, 'cur', 'max', 'mark', 'next_cur', 'next_max', 'next_mark', 'backs', 'backs_before',
  'backs_low', 'fence', 'born', 'store', 'scheme', 'node')
local fence, node = hash[10], hash[14]
--@include fenced
if fenced then return {'fenced', unpack(hash, 1, 13)} end
return {'current', unpack(hash, 1, 13)}
