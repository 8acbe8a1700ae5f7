"""Commands of pages run in the empty home of the command line's tests."""

from tests.cli.conftest import home, path_with_redis

__all__ = ["home", "path_with_redis"]
