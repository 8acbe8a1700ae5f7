-- Sets `elected`: whether this caller becomes the loader. False if another caller was elected within the window.
local now = now_ms()
local since = tonumber(redis.call('HGET', key, 'asked') or '')
local elected = not (since and now >= since and now - since <= window)
if elected then redis.call('HSET', key, 'asked', now) end
