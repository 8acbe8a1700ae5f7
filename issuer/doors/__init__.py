"""Doors for other languages: HTTP and the Redis protocol, and what serves both."""
