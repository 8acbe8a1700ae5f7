-- Sets `elected`: true if this caller becomes the loader. It is false if another caller was elected within the window.
local now = now_ms()
local since = tonumber(redis.call('HGET', key, 'asked') or '')
local elected = not (since and now >= since and now - since <= window)
if elected then redis.call('HSET', key, 'asked', now) end
