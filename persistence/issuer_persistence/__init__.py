"""Stores, which reserve ranges of numbers durably. `issuer` imports this package, never the other way round."""
