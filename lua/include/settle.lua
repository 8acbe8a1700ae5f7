-- longest: the longest duration of a lease so far, in ms. hold: after a new term began, or after the hash was missing, no
-- claim is granted for this many ms. Redis may have lost leases then, and after this time all of them are over. A clock that
-- went back counts as a new term. first '1': a new tag has no earlier leases, so its first claim need not wait.
longest = math.max(longest, lease)
local hold = longest + margin
if state[1] ~= reign or here and state[5] and state[5] ~= here or now < since then
  since = now
  if first == '1' and not state[1] then since = now - hold end
  redis.call('HSET', key, 'reign', reign, 'since', since, 'longest', longest)
elseif longest ~= tonumber(state[3] or 0) then
  redis.call('HSET', key, 'longest', longest)
end
if here and state[5] ~= here then redis.call('HSET', key, 'node', here) end
