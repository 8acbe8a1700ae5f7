"""Programs whose clock can be set while they run: libfaketime stands between them and the system's clock.

Debian's package is called libfaketime. The server has to come with libc's malloc, as those of the wheels do. jemalloc,
which Debian's redis-server has, asks for the time while it begins; the library asks it for memory, to find out; and the
two wait for each other for ever.
"""

import time
from pathlib import Path
from typing import Any

import redis

from tests.servers.absent import absent
from tests.servers.binaries import find_servers, version
from tests.servers.redis import RedisServer
from tests.waiting import until

_FOLDERS = ("usr/lib/*-linux-gnu", "usr/lib", "usr/lib64", "usr/local/lib")

#: What the library leaves behind of a process that is killed, by its id.
_LEFT = ("faketime_shm_{}", "sem.faketime_sem_{}")


def find_library() -> Path | None:
    return next((path for folder in _FOLDERS for path in Path("/").glob(f"{folder}/faketime/libfaketime.so.1")), None)


def find_clocked(preferred: Path | None = None) -> Path | None:
    """Return a server that runs with libfaketime, `preferred` if it does; None if there is none, or no library."""
    servers = [path for path in (preferred, *find_servers().values()) if path and "malloc=libc" in version(path)]
    return servers[0] if servers and find_library() else None


def clocked_binary(preferred: Path) -> Path:
    """Return what `find_clocked` finds; without it the test is skipped, and fails where CI is set."""
    return find_clocked(preferred) or absent("libfaketime, or a server that runs with it,", "libfaketime")


class Clock:
    """The clock of a program that is started with this `environment`; the system's, until it is set.

    What the program measures by the monotonic clock stays as it is.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.environment = {
            "LD_PRELOAD": str(find_library() or absent("libfaketime", "libfaketime")),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.set(0)

    def set(self, seconds: float) -> None:
        """Set it so far ahead of the system's clock."""
        # Whole at once: it is read at every look at the clock.
        half = self._file.with_suffix(".half")
        half.write_text(f"{seconds:+g}\n")
        half.rename(self._file)


class ClockedServer(RedisServer):
    """Begins with the system's time."""

    def __init__(self, binary: Path | str, *args: str, **options: Any) -> None:
        super().__init__(binary, *args, **options)
        self._clock = Clock(self.directory / "clock")

    def set_clock(self, seconds: float) -> None:
        """Set it so far ahead of the system's clock, and return when the server sees it."""
        self._clock.set(seconds)
        with self.client() as client:
            until(lambda: abs(_ahead(client) - seconds) < 1, message=f"the clock is {seconds:+g} s off")

    def kill(self) -> None:
        """SIGKILL, and remove what the library leaves behind then."""
        pid = self.pid
        super().kill()
        for name in _LEFT if pid else ():
            Path("/dev/shm", name.format(pid)).unlink(missing_ok=True)

    def _command(self) -> list[str]:
        # `env` becomes the server: its process id stays.
        return ["env", *(f"{name}={value}" for name, value in self._clock.environment.items()), *super()._command()]


def _ahead(client: redis.Redis) -> float:
    seconds, microseconds = client.time()
    return seconds + microseconds / 1e6 - time.time()
