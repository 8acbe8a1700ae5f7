"""The public classes: an issuer for threads, and one for asyncio."""
