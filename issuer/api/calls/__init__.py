"""The methods that both interfaces have. They are written once as async code; the blocking module is generated."""
