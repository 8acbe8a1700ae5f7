"""A server that speaks the Redis protocol, so that a Redis client of any language can draw numbers."""
