-- hold: for this many ms after a new term began, or if the hash was missing, no claim is granted, because Redis may
-- have lost leases. After the hold, all leases of the earlier term are over. A clock that went back counts as a new
-- term.
longest = math.max(longest, lease)
local hold = longest + margin
if state[1] ~= reign or now < since then
  since = now
  if first == '1' and not state[1] then since = now - hold end
  redis.call('HSET', key, 'reign', reign, 'since', since, 'longest', longest)
elseif longest ~= tonumber(state[3] or 0) then
  redis.call('HSET', key, 'longest', longest)
end
