"""Commands for Redis as packed bytes, and their replies as values.

Each Lua script and each command has one typed function. Only this package handles the KEYS and ARGV of scripts, and the
bytes of replies. This package does no I/O: the drivers send the commands.
"""
