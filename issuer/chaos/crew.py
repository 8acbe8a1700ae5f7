"""The drawing processes of a run: started, killed, stopped, replaced, and asked whether they get numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from issuer.chaos.call_files import Follower
from issuer.chaos.waiting import until
from issuer.chaos.watched import Strike
from issuer.chaos.worker import STACKS, STACKS_END, Setup, trap_file
from issuer.errors import IssuerError

#: Seconds that the processes have to end once they are asked to.
ENDING = 12.0
#: Seconds that one has to print where it stands, and how many characters of that are shown.
STACKS_TAKE, STACKS_MOST = 3.0, 20_000

now = time.monotonic_ns


class Worker:
    """One process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.name = setup.name
        self._follower = Follower(Path(setup.folder), setup.name)
        self._trap = trap_file(Path(setup.folder), setup.name)
        self._log = Path(setup.folder) / f"log.{setup.name}"
        # The user's own settings are none of the harness's business.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                [sys.executable, "-m", setup.program, setup.dumped()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for the run itself, which then ends them.
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it runs, stopped or not."""
        return self.process.poll() is None

    def served(self, since: int, only: Iterable[int] | None = None, *, whole: bool = False) -> bool:
        """Whether it got numbers of its tags, each or `only` those, since that time (ns); `whole`: see Follower."""
        wanted = {job.at for job in self.setup.jobs}
        chosen = wanted if only is None else wanted & set(only)
        return all(self._follower.served(at, since, whole=whole) for at in chosen)

    def dismiss(self) -> None:
        """Tell it to stop, and to give back what it holds."""
        if self.process.stdin is not None:
            self.process.stdin.close()

    def end(self) -> None:
        """Wait for its end, and kill it if that doesn't come."""
        self.dismiss()
        try:
            self.process.wait(ENDING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # Forked children are in its group, and may still draw.
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def set_clock(self, off: float) -> None:
        """Let its wall clock be off by `off` seconds while it runs; 0: right again."""
        if self.process.stdin is not None:
            self.process.stdin.write(b"%r\n" % off)
            self.process.stdin.flush()

    def trap(self, point: str, number: int) -> None:
        """Let its next extension be hit at this point by this signal; see worker.POINTS."""
        # Whole at once: it may look at any moment.
        half = self._trap.with_suffix(".half")
        half.write_text(f"{point} {number}")
        half.rename(self._trap)

    @property
    def sprung(self) -> bool:
        """Whether the trap has been."""
        return not self._trap.exists()

    def untrap(self) -> bool:
        """Take the trap away; False if it has sprung: the first of the two to come removes the file."""
        try:
            self._trap.unlink()
        except FileNotFoundError:
            return False
        return True

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
        """Return what can be found out about one that gets no numbers: of which tags, and where it stands."""
        lacking = [job.tag for job in self.setup.jobs if not self._follower.served(job.at, since)]
        state = "stopped" if self.halted else self.setup.colour
        said = self.last_words()
        self.signal(STACKS)
        with suppress(AssertionError):  # one that is stopped prints nothing
            until(lambda: STACKS_END in self._log.read_text(errors="replace"), STACKS_TAKE)
        stands = self._log.read_text(errors="replace").strip()[-STACKS_MOST:]
        return f"{self.name}, {state}, lacks {', '.join(lacking) or 'nothing any more'}: {said}\n{stands}\n"


class Workers:
    """The workers of a run, and what was done to them."""

    def __init__(self, patience: float) -> None:
        """`patience`: how long to wait for numbers, in seconds."""
        self.patience = patience
        self.workers: list[Worker] = []
        #: By worker: when it was stopped; 0 as `back` until it goes on.
        self.stopped: dict[str, list[Strike]] = {}
        self._replaced = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error or Ctrl-C what they hold needs no way back, and a call may wait long for a Redis that is away.
        for worker in self.workers if kind else ():
            worker.process.kill()
        self.dismiss()

    def hire(self, *setups: Setup) -> None:
        """Start them, and return when each gets numbers."""
        self.wait_served(0, self.start(*setups), 30.0)

    def start(self, *setups: Setup) -> list[Worker]:
        """Start them."""
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
        """Return when each of these has got numbers since that time (ns), of `only` these tags or all. IssuerError."""
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
        """Tell these to stop, or all, and wait for their end: what they hold is given back."""
        ending = [worker for worker in self.workers if workers is None or worker in workers]
        for worker in ending:
            self.resume(worker)
            worker.dismiss()
        for worker in ending:
            worker.end()
            self.workers.remove(worker)

    def relieve(self) -> list[Setup]:
        """Let all end in order, and return what their successors are to be told."""
        setups = [self.renamed(worker.setup) for worker in self.workers]
        self.dismiss()
        return setups

    def renamed(self, setup: Setup, **changes: object) -> Setup:
        """Return what another worker is to be told: the same, but for a name of its own and these changes."""
        self._replaced += 1
        name = f"{setup.name.split('r')[0]}r{self._replaced}"
        return replace(setup, name=name, **changes)  # type: ignore[arg-type]  # names of its fields

    def lost(self, worker: Worker, **changes: object) -> Worker:
        """Take note that the worker has ended, and start another one in its place, which is returned."""
        worker.end()
        self.workers.remove(worker)
        successor = Worker(self.renamed(worker.setup, **changes))
        self.workers.append(successor)
        return successor

    def kill(self, worker: Worker) -> Worker:
        """SIGKILL, and start another one in its place, which is returned."""
        worker.process.kill()
        return self.lost(worker)

    def retire(self, worker: Worker, **changes: object) -> Worker:
        """Let it end in order, and start another one in its place, told the same but for these changes."""
        worker.dismiss()
        return self.lost(worker, **changes)

    def pause(self, worker: Worker) -> None:
        """SIGSTOP."""
        self.stopped.setdefault(worker.name, []).append(Strike("stopped", now(), 0))
        worker.signal(signal.SIGSTOP)

    def resume(self, worker: Worker) -> None:
        """SIGCONT, if it was stopped."""
        pauses = self.stopped.get(worker.name, [])
        if worker.alive and (worker.halted or (pauses and not pauses[-1].back)):
            worker.signal(signal.SIGCONT)
            if pauses and not pauses[-1].back:
                pauses[-1] = replace(pauses[-1], back=now())
