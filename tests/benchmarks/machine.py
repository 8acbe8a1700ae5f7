"""What the figures were measured on: without it they say nothing."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib import metadata
from pathlib import Path

from tests.servers.binaries import primary_server, version

#: The distributions whose speed is in the figures.
LIBRARIES = ("redis", "hiredis", "pymongo", "uuid-utils", "python-ulid", "snowflake-id", "psycopg")


def describe() -> dict[str, str]:
    """Return processor, operating system, Python, servers and libraries, by name."""
    found = {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }
    if server := primary_server():
        found["redis-server"] = version(server).partition(" sha=")[0]
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            found[library] = "not installed"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown processor"
