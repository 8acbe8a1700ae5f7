"""Redis servers of our own, and proxies that misbehave when told to: what `issuer chaos` breaks."""
