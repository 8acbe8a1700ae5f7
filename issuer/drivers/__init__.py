"""Drivers run the protocol: connections, callers, waiting. `blocking` for threads, `aio` for tasks.

`servers` has the connections of a process, bounded by `redis_pool`. `topology` remembers which server holds a tag, and
`target` reads it from a URL. `breaker` leaves silent servers alone, `redis_errors` turns errors of Redis into public
ones. `store_pool` queries the store in threads. `spans` reports to OpenTelemetry.
"""
