"""The asyncio driver: tasks wait with a deadline, and never block the loop.

The asyncio driver has the same modules as the blocking driver. A call to a store would block the loop, so stores are
called in threads.
"""
