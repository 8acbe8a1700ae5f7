"""The asyncio driver: tasks wait with a deadline, and never block the loop.

The same modules as in the blocking driver. Stores block: their calls run in threads.
"""
