-- Sets `claimant`, which names the caller: the decimals of its window, such as .0000123. nil: it gave none.
-- elect(asked): elects the caller to load the next segment, unless another one was elected within the window. `asked`, a
-- field of the hash, is the time of the last election with the decimals of its claimant. They are below 0.0001, which is too
-- little to change a time in milliseconds: a Lua number has steps of 0.0002 there.
local claimant = string.match(election, '%.0000%d+$')
local function elect(asked)
  local now, since = now_ms(), tonumber(asked or '')
  if since and now >= since and now - since <= window then return false end
  redis.call('HSET', key, 'asked', string.format('%.0f', now) .. (claimant or ''))
  return true
end
