"""Servers that end with the process that started them, however it ends: a second process watches over it.

Before a server is executed it writes its process id and its directory into a file. The watchdog, this file run as a
program, waits until the process that started it is gone. Then it kills what the file names, and removes directories.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_NOTING = 'echo "$$ $PWD" >>"$0" && exec "$@"'
_lock = threading.Lock()
#: The file, and the watchdog, by the process that they belong to: a forked child has its own.
_notes: dict[int, tuple[Path, subprocess.Popen[bytes]]] = {}


def launch(command: Sequence[str], directory: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a server in this directory, which names the directory in its command line, and which nothing outlives."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _NOTING, str(_watched()), *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=directory,
        # A session of its own: Ctrl-C in the terminal must reach the test, which then ends the server.
        start_new_session=True,
    )


def _watched() -> Path:
    """Return the file for what is started by this process, which is watched over."""
    with _lock:
        if os.getpid() not in _notes:
            descriptor, name = tempfile.mkstemp(prefix="issuer-servers-")
            os.close(descriptor)
            watching = [sys.executable, "-I", "-S", __file__, name, str(os.getpid())]
            # Its pipe to us is closed when we end; that is all it ever reads of it.
            watchdog = subprocess.Popen(watching, stdin=subprocess.PIPE, start_new_session=True)
            watchdog.returncode = 0  # nobody waits for its end
            _notes[os.getpid()] = Path(name), watchdog
        return _notes[os.getpid()][0]


def _watch(notes: Path, parent: int) -> None:
    """Wait for the end of the parent; its pipe may be held open by children that it has forked."""
    while os.getppid() == parent and not select.select([sys.stdin], [], [], 1)[0]:
        pass
    for line in notes.read_text().splitlines():
        pid, _, directory = line.partition(" ")
        if _works_in(pid, directory):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
    notes.unlink()


def _works_in(pid: str, directory: str) -> bool:
    """Whether it is that server: by now the number may be another process's. Without /proc nobody can tell."""
    with contextlib.suppress(OSError):
        return Path("/proc", pid, "cwd").readlink() == Path(directory)
    return not Path("/proc", str(os.getpid())).exists()


if __name__ == "__main__":
    _watch(Path(sys.argv[1]), int(sys.argv[2]))
