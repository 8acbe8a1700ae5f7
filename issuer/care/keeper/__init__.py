"""The keeper: loads segments for clients that draw from Redis without this library."""
