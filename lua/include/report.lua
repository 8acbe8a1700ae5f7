-- If the caller can't load, publishes the tag's key on the channel `{prefix}:due`: the tag needs a segment. A keeper, which
-- subscribes to the channel, loads one. pcall: callers without this right can draw nevertheless.
if window < 0 then redis.pcall('PUBLISH', string.match(key, '^[^{]*') .. 'due', key) end
