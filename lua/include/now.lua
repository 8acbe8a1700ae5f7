-- now_ms(): the server's clock in milliseconds, which a Lua number holds exactly. This clock ends elections, periods
-- and leases of machine numbers. But this clock is never the only reason why a number is unique.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
