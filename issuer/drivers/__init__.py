"""Drivers run the protocol: connections, callers, waiting. `blocking` for threads, `aio` for tasks.

`servers` has the connections of a process and their limit. `topology` remembers which server holds a tag, and which one
does not answer. `target` reads a URL. `redis_errors` turns errors of Redis into public ones. `store_pool` queries the
store in threads. `spans` reports to OpenTelemetry.
"""
