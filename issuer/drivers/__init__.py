"""Drivers run the protocol: connections, callers, waiting. `blocking` for threads, `aio` for tasks.

`servers` reads a URL, and has the connections of a process and their limit. `topology` remembers which server holds a
tag, and which one does not answer. `redis_errors` turns errors of Redis into public ones. `store_pool` calls the store
in threads. `spans` reports to OpenTelemetry.
"""
