"""The methods that both interfaces have: written once as async code, the blocking twin is generated."""
