"""The engine of an issuer: its public classes, `issuer serve` and metrics use it. It may change in any version."""
