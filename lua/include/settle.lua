-- hold: after a new term began, or after the hash was missing, no claim is granted for this many ms, because Redis may
-- have lost leases. After this time, all leases of the earlier term are over. If the clock went back, this counts as a
-- new term.
longest = math.max(longest, lease)
local hold = longest + margin
if state[1] ~= reign or now < since then
  since = now
  if first == '1' and not state[1] then since = now - hold end
  redis.call('HSET', key, 'reign', reign, 'since', since, 'longest', longest)
elseif longest ~= tonumber(state[3] or 0) then
  redis.call('HSET', key, 'longest', longest)
end
