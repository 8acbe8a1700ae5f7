"""Stores, which reserve ranges of numbers durably. This package imports nothing of `issuer`."""
