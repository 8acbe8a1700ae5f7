-- now_ms(): the server's clock in milliseconds, which a double holds exactly. It ends elections, periods and leases of
-- machine numbers; no number is safe because of it alone.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
