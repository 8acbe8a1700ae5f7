"""The inside of an issuer, which its face, the doors and the metrics share. It may change in any version."""
