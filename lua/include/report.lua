-- If the caller can't load (its window is negative), publishes the tag's key on the channel `{prefix}:due`: the tag
-- needs a segment. A keeper, which subscribes to the channel, loads one. pcall: a caller without the right to publish
-- can still draw.
if window < 0 then redis.pcall('PUBLISH', string.match(key, '^[^{]*') .. 'due', key) end
