"""Drivers run the operations of `core`: they call Redis and the store. `blocking` is for threads, `aio` for tasks.

Both drivers use the other modules. `servers` parses a URL, and manages the connections of a process and their maximum
number. `topology` remembers which server holds a tag, and which servers do not answer. `wire` calls Redis. `channel`
receives its messages. `redis_errors` converts errors of Redis to public ones. `store_pool` calls the store in threads.
`spans` reports to OpenTelemetry.
"""
