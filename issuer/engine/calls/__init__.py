"""Calls of an engine for numbers, beyond plain draws. Written once as async code; the blocking module is generated."""
