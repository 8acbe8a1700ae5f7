"""Stores: the durable authority over ranges. Users import `issuer`; this package never does."""
