"""A TCP proxy that stands before Redis or MongoDB and misbehaves when told to."""

from issuer.cli.chaos.proxy import FaultProxy, Kind

__all__ = ["FaultProxy", "Kind"]
