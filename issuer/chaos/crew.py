"""The workers of a run, which are processes that draw numbers: starts, stops, replaces and checks them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from issuer.chaos.call_files import Follower
from issuer.chaos.scratch import plain_environment
from issuer.chaos.waiting import until
from issuer.chaos.watched import Strike
from issuer.chaos.worker import STACKS, STACKS_END, Setup, trap_file
from issuer.clock import monotonic_ns as now
from issuer.errors import IssuerError

#: Maximum time, in seconds, from a stop request to the end of a worker. After this time the worker is killed.
ENDING = 12.0
#: STACKS_TAKE: maximum time, in seconds, in which a worker prints its stacks. STACKS_MOST: maximum number of characters
#: of the stacks in a report.
STACKS_TAKE, STACKS_MOST = 3.0, 20_000


class Worker:
    """A process that draws numbers."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.name = setup.name
        self._follower = Follower(Path(setup.folder), setup.name)
        self._trap = trap_file(Path(setup.folder), setup.name)
        self._log = Path(setup.folder) / f"log.{setup.name}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", setup.program, setup.dumped()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=plain_environment(),
                # Ctrl-C must reach only the run itself, which then ends its workers.
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """True if the process exists, also while it is suspended by SIGSTOP."""
        return self.process.poll() is None

    def served(self, since: int, only: Iterable[int] | None = None) -> bool:
        """Return whether the worker received numbers of each of its tags since a time in ns.

        `only`: indices of the tags to check. None means all.
        """
        wanted = {job.at for job in self.setup.jobs}
        chosen = wanted if only is None else wanted & set(only)
        return all(self._follower.served(at, since) for at in chosen)

    def dismiss(self) -> None:
        """Request the stop of the worker, which then returns its unused numbers to the store and ends."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """Request the stop of the worker and wait. If it does not end in time, kill it."""
        self.dismiss()
        try:
            self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Forked children of the worker are in its process group, and may still draw.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def trap(self, point: str, number: int) -> None:
        """Set a trap: when the worker next loads a segment, it sends itself a signal.

        Args:
            point: The worker sends the signal after this step of the load, one of worker.POINTS.
            number: Number of the signal.
        """
        # A rename is atomic, so the worker never reads a half-written file.
        half = self._trap.with_suffix(".half")
        half.write_text(f"{point} {number}")
        half.rename(self._trap)

    @property
    def sprung(self) -> bool:
        """True if the worker has reached the trap. Before it sends itself the signal, it removes the trap file."""
        return not self._trap.exists()

    def untrap(self) -> bool:
        """Remove the trap. Return False if it is too late, because the worker has already reached the trap."""
        with suppress(FileNotFoundError):
            self._trap.unlink()
            return True
        return False

    def check_alive(self) -> None:
        if not self.alive:
            raise IssuerError(f"drawing process {self.name} has ended: {self.last_words()}")

    @property
    def halted(self) -> bool:
        """True if the process is suspended by SIGSTOP. It still exists, but does not run."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def last_words(self) -> str:
        return self._log.read_text(errors="replace").strip()[-600:] or "it said nothing"

    def stuck(self, since: int) -> str:
        """Describe a worker that receives no numbers: the tags that it waits for, and the stacks of its threads."""
        lacking = [job.tag for job in self.setup.jobs if not self._follower.served(job.at, since)]
        state = "stopped" if self.halted else self.setup.colour
        said = self.last_words()
        self.process.send_signal(STACKS)
        with suppress(AssertionError):  # a process that is suspended by SIGSTOP prints nothing
            until(lambda: STACKS_END in self._log.read_text(errors="replace"), STACKS_TAKE)
        stands = self._log.read_text(errors="replace").strip()[-STACKS_MOST:]
        return f"{self.name}, {state}, lacks {', '.join(lacking) or 'nothing any more'}: {said}\n{stands}\n"


class Workers:
    """The workers of a run, and the times during which they were suspended by SIGSTOP."""

    def __init__(self, patience: float) -> None:
        """`patience`: if a worker receives no numbers for this many seconds, the run counts as stuck."""
        self.patience = patience
        self.workers: list[Worker] = []
        #: For each worker, by name: the times during which it was suspended by SIGSTOP. The end of such a time, `back`,
        #: is 0 until the worker continues.
        self.stopped: dict[str, list[Strike]] = {}
        self._replaced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error or Ctrl-C, workers are killed. Otherwise a call could wait long for a Redis that is down.
        for worker in self.workers if kind else ():
            worker.process.kill()
        self.dismiss()

    def start(self, *setups: Setup) -> list[Worker]:
        fresh = [Worker(setup) for setup in setups]
        self.workers += fresh
        return fresh

    def wait_served(
        self,
        since: int,
        workers: Iterable[Worker] | None = None,
        timeout: float | None = None,
        only: Iterable[int] | None = None,
    ) -> None:
        """Wait until each worker has received numbers of each of its tags.

        `since`: time in ns. Only calls that ended at or after it count. `workers`: None means all. `timeout`: in
        seconds; None means `patience`. `only`: indices of the tags to check; None means all. Raises IssuerError if the
        time is over, or if a worker has ended.
        """
        chosen = [*(self.workers if workers is None else workers)]
        wanted = None if only is None else [*only]
        waiting = list(chosen)

        def all_served() -> bool:
            for worker in list(waiting):
                worker.check_alive()
                if worker.served(since, wanted):
                    waiting.remove(worker)
            return not waiting

        seconds = self.patience if timeout is None else timeout
        try:
            until(all_served, seconds)
        except AssertionError:
            stuck = "; ".join(worker.stuck(since) for worker in waiting)
            raise IssuerError(f"no numbers within {seconds:g} s in {stuck}") from None

    def dismiss(self, workers: Collection[Worker] | None = None) -> None:
        """Request the stop of these workers (None: all), and wait until they have returned unused numbers and ended."""
        ending = [worker for worker in self.workers if workers is None or worker in workers]
        for worker in ending:
            self.resume(worker)
            worker.dismiss()
        for worker in ending:
            worker.end()
            self.workers.remove(worker)

    def renamed(self, setup: Setup, **changes: object) -> Setup:
        self._replaced += 1
        name = f"{setup.name.split('r')[0]}r{self._replaced}"
        return replace(setup, name=name, **changes)  # type: ignore[arg-type]  # names of its fields

    def replaced(self, worker: Worker, **changes: object) -> Worker:
        worker.end()
        self.workers.remove(worker)
        successor = Worker(self.renamed(worker.setup, **changes))
        self.workers.append(successor)
        return successor

    def pause(self, worker: Worker) -> None:
        self.stopped.setdefault(worker.name, []).append(Strike("stopped", now(), 0))
        worker.process.send_signal(signal.SIGSTOP)

    def resume(self, worker: Worker) -> None:
        pauses = self.stopped.get(worker.name, [])
        if worker.alive and (worker.halted or (pauses and not pauses[-1].back)):
            worker.process.send_signal(signal.SIGCONT)
            if pauses and not pauses[-1].back:
                pauses[-1] = replace(pauses[-1], back=now())
