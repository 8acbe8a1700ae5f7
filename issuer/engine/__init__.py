"""The engine does the work of an issuer. The public classes, `issuer serve` and the metrics use it.

It may change in any version.
"""
