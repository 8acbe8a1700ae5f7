"""The public face: an issuer for threads, one for asyncio, and the scheduler behind both."""
