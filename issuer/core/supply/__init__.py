"""Numbers of a tag for one process: drawn from Redis, leased, or reserved in the store."""
