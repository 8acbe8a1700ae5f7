"""Calls of an engine for numbers, beyond plain draws: written once as async code, the blocking twin is generated."""
