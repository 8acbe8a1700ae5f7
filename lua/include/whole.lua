-- whole(s): true if the string s is a whole number 0..2^63-1 in decimal digits. less(a, b): true if a < b, for two such
-- strings. Numbers stay strings: a Lua number is a double, and above 2^53 two adjacent numbers would become equal.
local function whole(s)
  return s and #s < 20 and (#s < 19 or s <= '9223372036854775807') and (s == '0' or string.find(s, '^[1-9]%d*$'))
end
local function less(a, b)
  return #a < #b or (#a == #b and a < b)
end
