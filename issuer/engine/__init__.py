"""The inside of an issuer, which its public classes, `issuer serve` and metrics use. It may change in any version."""
