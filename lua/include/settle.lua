-- hold: no claim is granted for this many ms after a new reign began, or where the hash is missing, as what was held may
-- have been forgotten; by then every lease of the reign before is over. A clock that went back counts as a new reign.
longest = math.max(longest, lease)
local hold = longest + margin
if state[1] ~= reign or now < since then
  since = now
  if first == '1' and not state[1] then since = now - hold end
  redis.call('HSET', key, 'reign', reign, 'since', since, 'longest', longest)
elseif longest ~= tonumber(state[3] or 0) then
  redis.call('HSET', key, 'longest', longest)
end
