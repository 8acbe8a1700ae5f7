"""The asyncio driver: tasks wait with a deadline, and never block the loop.

It has the same modules as the blocking driver. Stores would block the loop, so they are called in threads.
"""
