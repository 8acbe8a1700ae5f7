"""The asyncio driver: tasks that wait, with a deadline; the loop is never blocked.

The same modules as the blocking driver: `connections` talks to Redis, `runner` runs the core's generators, and a
number's way from `next()` to the script goes through `combiner`. Stores are blocking: their calls get threads.
"""
