"""The server of Redis's own protocol, seen by its clients."""
