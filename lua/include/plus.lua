  -- plus(a, b): the sum of two strings of digits. A Lua number (a double) is exact up to 2^53. So the last 15 digits of longer
  -- numbers are added apart from the digits before them.
  local function plus(a, b)
    if #a < 16 and #b < 16 then return string.format('%d', a + b) end
    local last = string.sub(a, -15) + string.sub(b, -15)
    local first = ('0' .. string.sub(a, 1, -16)) + ('0' .. string.sub(b, 1, -16)) + math.floor(last / 1e15)
    return string.format('%d%015d', first, last % 1e15)
  end
