-- Reads the tag's hash, and sets:
-- reign: the current master_replid, the id of the term. Never use master_replid2, the id of the previous term. If the
-- server shows no master_replid, there is no fence, and this code returns an error status.
-- here: the id of this node of a Cluster, see here.lua. If the user may not read it, the id in the hash counts.
-- current: true if the hash was prepared in this term, see fenced.lua.
-- top: the highest number in the hash, or false if a field is corrupt.
-- backs, backs_before, backs_low: see giveback.
local key = KEYS[1]
local reign = string.match(info, '\nmaster_replid:(%x+)\r') or ''
if #reign ~= 40 then return {'notmaster'} end
local hash = redis.call('HMGET', key, 'cur', 'max', 'mark', 'next_cur', 'next_max', 'next_mark', 'fence', 'born', 'store', 'asked',
  'scheme', 'until', 'backs',
  'backs_before', 'backs_low', 'node')
local cur, max, mark, next_cur, next_max, next_mark = hash[1], hash[2], hash[3], hash[4], hash[5], hash[6]
local fence, born, store, asked, scheme, till = hash[7], hash[8], hash[9], hash[10], hash[11] or '', hash[12] or ''
local backs, backs_before, backs_low, node = hash[13] or '0', hash[14] or '0', hash[15] or '0', hash[16]
local missing = not cur and not max
--@include here
here = here or fence == reign and node
local current = not missing and fence == reign and (not node or node == here)
local top = '0'
if not missing then
  top = whole(cur) and whole(max) and whole(mark) and not less(max, cur) and not less(max, mark) and max
  if next_cur or next_max or next_mark then
    local fine = whole(next_cur) and whole(next_max) and whole(next_mark) and less(next_cur, next_max)
    top = top and fine and not less(next_cur, top) and not less(next_max, next_mark) and next_max
  end
  if scheme ~= '' then top = whole(till) and top end
  top = whole(backs) and whole(backs_before) and whole(backs_low) and top
end
