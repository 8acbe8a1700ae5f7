"""The drawing processes of a run: they are started, killed, stopped and replaced, and their progress is checked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns as now
from typing import Self

from issuer.chaos.call_files import Follower
from issuer.chaos.scratch import plain_environment
from issuer.chaos.waiting import until
from issuer.chaos.watched import Strike
from issuer.chaos.worker import STACKS, STACKS_END, Setup, trap_file
from issuer.errors import IssuerError

#: Seconds in which the processes must end after a stop request.
ENDING = 12.0
#: Seconds that a process has to print its stacks, and the most characters of them that are shown.
STACKS_TAKE, STACKS_MOST = 3.0, 20_000


class Worker:
    """One process."""

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
                # Ctrl-C goes to the run itself, which then ends its workers.
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether the process exists, perhaps stopped by a signal."""
        return self.process.poll() is None

    def served(self, since: int, only: Iterable[int] | None = None) -> bool:
        """Return whether it got numbers of each of its tags (or of `only` these) since a time in ns."""
        wanted = {job.at for job in self.setup.jobs}
        chosen = wanted if only is None else wanted & set(only)
        return all(self._follower.served(at, since) for at in chosen)

    def dismiss(self) -> None:
        """Request its stop. It hands back the numbers that it holds."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """Wait for its end, and kill it if it does not end in time."""
        self.dismiss()
        try:
            self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Its forked children are in the same group, and may still draw.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def trap(self, point: str, number: int) -> None:
        """Send it a signal at this point of its next extension; see worker.POINTS."""
        # A rename is atomic: the process may read the file at any moment.
        half = self._trap.with_suffix(".half")
        half.write_text(f"{point} {number}")
        half.rename(self._trap)

    @property
    def sprung(self) -> bool:
        """Whether the trap was used."""
        return not self._trap.exists()

    def untrap(self) -> bool:
        """Remove the trap. Return False if it was used: the process removes the file then."""
        with suppress(FileNotFoundError):
            self._trap.unlink()
            return True
        return False

    def check_alive(self) -> None:
        """Raise IssuerError if it has ended."""
        if not self.alive:
            raise IssuerError(f"drawing process {self.name} has ended: {self.last_words()}")

    @property
    def halted(self) -> bool:
        """Whether the process is stopped by a signal."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        try:
            return stat.read_text().rpartition(")")[2].split()[0] == "T"
        except OSError:
            return False

    def last_words(self) -> str:
        """Return the end of what it printed."""
        return self._log.read_text(errors="replace").strip()[-600:] or "it said nothing"

    def stuck(self, since: int) -> str:
        """Describe a process that gets no numbers: the tags it waits for, and its stacks."""
        lacking = [job.tag for job in self.setup.jobs if not self._follower.served(job.at, since)]
        state = "stopped" if self.halted else self.setup.colour
        said = self.last_words()
        self.process.send_signal(STACKS)
        with suppress(AssertionError):  # a stopped process prints nothing
            until(lambda: STACKS_END in self._log.read_text(errors="replace"), STACKS_TAKE)
        stands = self._log.read_text(errors="replace").strip()[-STACKS_MOST:]
        return f"{self.name}, {state}, lacks {', '.join(lacking) or 'nothing any more'}: {said}\n{stands}\n"


class Workers:
    """The workers of a run, and when they were stopped."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds to wait for numbers before the run counts as stuck."""
        self.patience = patience
        self.workers: list[Worker] = []
        #: By worker name: when it was stopped. `back` is 0 until it continues.
        self.stopped: dict[str, list[Strike]] = {}
        self._replaced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error or Ctrl-C they need not hand numbers back, and a call may wait long for a Redis that is down.
        for worker in self.workers if kind else ():
            worker.process.kill()
        self.dismiss()

    def start(self, *setups: Setup) -> list[Worker]:
        """Start workers."""
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
        """Wait until each worker got numbers since a time in ns, of all tags or `only` these. Raises IssuerError."""
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
        """Stop these workers, or all, and wait for their end. They hand back the numbers that they hold."""
        ending = [worker for worker in self.workers if workers is None or worker in workers]
        for worker in ending:
            self.resume(worker)
            worker.dismiss()
        for worker in ending:
            worker.end()
            self.workers.remove(worker)

    def renamed(self, setup: Setup, **changes: object) -> Setup:
        """Return the settings of a successor: a new name, and these changes."""
        self._replaced += 1
        name = f"{setup.name.split('r')[0]}r{self._replaced}"
        return replace(setup, name=name, **changes)  # type: ignore[arg-type]  # names of its fields

    def replaced(self, worker: Worker, **changes: object) -> Worker:
        """Wait until a worker has ended, if it still runs after a stop request. Return its successor."""
        worker.end()
        self.workers.remove(worker)
        successor = Worker(self.renamed(worker.setup, **changes))
        self.workers.append(successor)
        return successor

    def pause(self, worker: Worker) -> None:
        """Stop a worker with SIGSTOP."""
        self.stopped.setdefault(worker.name, []).append(Strike("stopped", now(), 0))
        worker.process.send_signal(signal.SIGSTOP)

    def resume(self, worker: Worker) -> None:
        """Continue a worker with SIGCONT if it was stopped."""
        pauses = self.stopped.get(worker.name, [])
        if worker.alive and (worker.halted or (pauses and not pauses[-1].back)):
            worker.process.send_signal(signal.SIGCONT)
            if pauses and not pauses[-1].back:
                pauses[-1] = replace(pauses[-1], back=now())
