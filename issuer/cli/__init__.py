"""The command line: parses, calls the public face, maps errors to exit codes."""

from issuer.cli.group import main

__all__ = ["main"]
