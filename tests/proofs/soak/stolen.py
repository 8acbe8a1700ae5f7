"""Runs a command on a machine that others take away: both cores kept busy, and everything stopped now and then.

    python -m tests.proofs.soak.stolen --times 20 -- make test

What a test asserts must hold there too: a virtual machine may stand still for seconds, and its cores are shared. All
that the command has started, servers and all, is stopped by SIGSTOP at once, as a hypervisor would, and goes on
together. A process that a test has stopped itself stays so.
"""

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

_SUBREAPER = 36
_SPIN = "while True: pass"
_PPID, _STATE = 1, 0

#: What was started here, and is waited for.
_started: set[int] = set()


def _stat(pid: int) -> list[str]:
    # After the name, which may hold blanks and brackets: state, parent, ...
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def descendants(root: int) -> list[int]:
    """Return the processes that a process has started, and those that they have, oldest first."""
    children: dict[int, list[int]] = {}
    for pid in [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]:
        with suppress(OSError):  # it has ended
            children.setdefault(int(_stat(pid)[_PPID]), []).append(pid)
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def freeze(root: int, seconds: float, spared: Sequence[int] = ()) -> int:
    """Stop all descendants for so long, and let go on those that ran before. Returns how many stood still."""
    stopped: list[int] = []
    seen = set(spared)
    try:
        while fresh := [pid for pid in descendants(root) if pid not in seen]:
            for pid in fresh:
                seen.add(pid)
                with suppress(OSError):
                    if _stat(pid)[_STATE] not in "TtZ":
                        os.kill(pid, signal.SIGSTOP)
                        stopped.append(pid)
        time.sleep(seconds)
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return len(stopped)


def _bury() -> None:
    """Wait for those whose parents are gone: they are ours, and would stay zombies."""
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            if pid not in _started and _stat(pid)[_STATE] == "Z" and int(_stat(pid)[_PPID]) == os.getpid():
                os.waitpid(pid, os.WNOHANG)


@contextmanager
def stolen(every: tuple[float, float], seconds: float, seed: int, burners: int) -> Iterator[list[int]]:
    """Keep cores busy and freeze this process's children while the block runs; yields the sizes of the freezes."""
    chance, freezes, end = random.Random(seed), list[int](), threading.Event()
    busy = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(burners)]
    _started.update(each.pid for each in busy)

    def strike() -> None:
        due = time.monotonic() + chance.uniform(*every)
        while not end.wait(0.5):
            _bury()
            if time.monotonic() >= due:
                freezes.append(freeze(os.getpid(), seconds, [each.pid for each in busy]))
                due = time.monotonic() + chance.uniform(*every)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield freezes
    finally:
        end.set()
        thread.join()
        for each in busy:
            each.kill()
            each.wait()


@click.command()
@click.argument("command", nargs=-1, required=True)
@click.option("--times", default=1, show_default=True, help="How often the command is run.")
@click.option(
    "--every", default=(20.0, 40.0), nargs=2, show_default=True, help="Seconds between two freezes, from and to."
)
@click.option("--seconds", default=2.5, show_default=True, help="How long a freeze lasts.")
@click.option("--burners", default=os.cpu_count() or 1, show_default=True, help="Processes that keep a core busy.")
@click.option("--seed", default=0, show_default=True)
def main(
    *, command: tuple[str, ...], times: int, every: tuple[float, float], seconds: float, burners: int, seed: int
) -> None:
    """Run a command while others take the machine away."""
    # Told to end, it lets go on what it has stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # What loses its parent becomes ours, and is found all the same.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    red = 0
    for turn in range(1, times + 1):
        began = time.monotonic()
        with stolen(every, seconds, seed + turn, burners) as freezes:
            process = subprocess.Popen(command)
            _started.add(process.pid)
            try:
                code = process.wait()
            finally:
                process.terminate()
        red += code != 0
        took = time.monotonic() - began
        click.echo(f"run {turn} of {times}: exit {code} after {took:.0f} s, {len(freezes)} freezes of {seconds:g} s")
    click.echo(f"{times - red} green, {red} red")
    sys.exit(1 if red else 0)


if __name__ == "__main__":
    main()
