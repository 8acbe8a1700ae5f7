"""Servers for programs in other languages: HTTP, the Redis protocol, and `issuer serve`, which runs both."""
