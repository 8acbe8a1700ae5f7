"""Commands for Redis as packed bytes, and their replies as values.

Each Lua script and each command has one typed function. Only this package handles the scripts' KEYS and ARGV, and the
bytes of replies. It does no I/O: the drivers send the commands.
"""
