"""Calls for numbers that need more than a plain draw. `aio` is written by hand, and `blocking` is generated from it."""
