"""Drivers run the protocol: connections, callers, the waiting. `blocking` for threads, `asyncio` for tasks."""
