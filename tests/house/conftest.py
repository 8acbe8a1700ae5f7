"""Commands of pages run in the empty home of the command line's tests."""

from tests.cli.conftest import home

__all__ = ["home"]
