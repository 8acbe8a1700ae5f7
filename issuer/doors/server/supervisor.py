"""The supervisor: starts the processes of a server, replaces those that die, and ends all when the server stops.

granian has a supervisor of its own, which cannot keep the promises of this one (version 2.8, tried on Linux). Each of
its workers binds a socket of its own. So a second server starts on the same port without an error, and a worker that
hangs or dies keeps or loses connections that another worker could accept. It does not notice a worker that hangs. It
has no time between SIGTERM and the end, ends the server if a worker dies twice within 5 s, and runs no other processes:
the keeper, and workers without HTTP.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from types import FrameType
from typing import Final, Literal

from issuer.clock import monotonic
from issuer.doors.server.systemd import notify
from issuer.errors import ConfigurationError, IssuerError

log = logging.getLogger("issuer.doors.server")

#: Seconds in which all processes must stop. Processes that take longer are killed.
STOPPING: Final = 4.7
#: Seconds before a process that died is started again. The pause doubles with each death, up to LONGEST_PAUSE.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
#: If a process has run for this many seconds before it dies, it is started again at once.
SOUND: Final = 30.0

#: Seconds between two reports `Alive` of a process. The supervisor checks the reports at the same interval.
ALIVE_EVERY: Final = 1.0
#: If this many checks in a row find no report of a process, the process is killed. Checks are counted, not seconds: a
#: suspended machine makes no checks, so no process is killed when the machine resumes.
SILENT_LOOKS: Final = 30

#: Signals that stop the server.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
#: Signals that have no effect on the server. By default they would end a process.
MEANINGLESS: Final = (signal.SIGUSR1, signal.SIGUSR2)

#: Processes are forked, because a new interpreter would need half a second or more for its imports. Forks are safe
#: here: the supervisor's only other thread writes the log, and it holds no lock that a child uses.
_processes = multiprocessing.get_context("fork")


#: A report of a child to the supervisor: "alive" every ALIVE_EVERY seconds, and once "ready" or an error.
Report = Literal["alive", "ready"] | IssuerError
#: An order of the supervisor to a child: "reload" what can change, which the child answers with "ready"; "drain", as a
#: stop begins; "end".
Order = Literal["reload", "drain", "end"]
#: The work of a child process: a function that gets a connection to the supervisor, for `read_order`, and a function
#: that sends reports to the supervisor. It returns after the order "end".
Job = Callable[[Connection, Callable[[Report], None]], None]


def read_order(orders: Connection) -> Order:
    """Read an order of the supervisor. If the supervisor is dead, the connection is closed: then it is "end"."""
    try:
        order: Order = orders.recv()
    except (EOFError, OSError):
        return "end"
    return order


@dataclass(slots=True)
class _Child:
    """A child process of the supervisor. When the process dies, a new one replaces it.

    Attributes:
        line: Connection for orders to the process and for its reports.
        served: Whether a process of this child has reported that it is ready.
        ready: Whether it has reported this since the start of the server, or since the last order to reload.
        began: Monotonic time of the last start.
        deaths: Number of deaths in a row, each less than SOUND seconds after the start of the process.
        silent: Number of checks of the supervisor since the last report of the process.
        due: Monotonic time of the next start. Infinite if a process runs, or if none must be started.
    """

    name: str
    job: Job
    process: ForkProcess | None = None
    line: Connection | None = None
    served: bool = False
    ready: bool = False
    began: float = 0.0
    starts: int = 0
    deaths: int = 0
    silent: int = 0
    due: float = 0.0

    def order(self, order: Order) -> None:
        if self.line is not None:
            with suppress(OSError):  # the process is dead
                self.line.send(order)

    def hang_up(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None


def catch(numbers: Iterable[int], handler: Callable[[int, FrameType | None], object]) -> None:
    """Set a handler for signals.

    A signal that was ignored before, such as SIGINT in a background job of a shell, stays ignored. SIGTERM never does.
    """
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, handler)


class _Phase(IntEnum):
    """A phase of the supervisor. It drains between SIGTERM and the order to end: the children still serve."""

    SERVING = 0
    DRAINING = 1
    ENDING = 2
    KILLED = 3


class Supervisor:
    """Runs a child process for each job, until a signal arrives or a child cannot start."""

    def __init__(
        self,
        jobs: Sequence[tuple[str, Job]],
        serving: str,
        ended: Callable[[int], object],
        *,
        drain_delay: float = 0.0,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        """Create a supervisor.

        Args:
            jobs: Pairs of a name, which the log shows, and a job.
            serving: Message for the log when all children serve.
            ended: Called with the id of each process that has ended.
            drain_delay: Seconds between SIGTERM and the order to the children to end.
            close: Called just before this order. It closes the listening sockets.
        """
        self._children = [_Child(name, job) for name, job in jobs]
        self._serving = serving
        self._ended = ended
        self._drain_delay = drain_delay
        self._close = close
        self._signalled, self._signal = os.pipe()
        os.set_blocking(self._signalled, False)
        os.set_blocking(self._signal, False)
        self._phase = _Phase.SERVING
        #: Monotonic time at which the next phase begins. Infinite if nothing but a signal begins it.
        self._until = inf
        self._next_look = 0.0
        self._error: IssuerError | None = None

    def run(self) -> int:
        """Run the children until the server stops. Return the exit code.

        The exit code is 0 after one signal, and 1 if a process was killed because it did not end in time. After a
        second signal, it is 128 plus the number of this signal. Raises the error of a process that cannot start.
        """
        # Exclude the existing objects from garbage collection. In a child, garbage collection would write to these
        # objects, and the system would copy their memory.
        gc.collect()
        gc.freeze()
        catch((*SIGNALS, *MEANINGLESS), lambda _number, _frame: None)
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)  # also under nohup: a reload stops nothing
        signal.set_wakeup_fd(self._signal, warn_on_full_buffer=False)
        while self._phase < _Phase.ENDING or any(child.process is not None for child in self._children):
            for child in self._children:
                if child.due <= monotonic():
                    self._start(child)
            self._wait()
            self._look()
            if (second := self._signals()) is not None:
                self._kill("received a second signal")
                return 128 + second
            if monotonic() >= self._until:
                if self._phase is _Phase.DRAINING:
                    self._stop()
                else:
                    self._kill(f"it did not end within {STOPPING:g} s")
        if self._error is not None:
            raise self._error
        return 1 if self._phase is _Phase.KILLED else 0

    def _signals(self) -> int | None:
        """Begin a stop when the first signal arrives. Return the number of a second signal, or None."""
        with suppress(BlockingIOError):
            for number in os.read(self._signalled, 64):
                name = signal.Signals(number).name
                if number in MEANINGLESS or (number == signal.SIGHUP and self._phase is not _Phase.SERVING):
                    log.warning("received %s, which has no effect on this server", name)
                elif number == signal.SIGHUP:
                    self._reload()
                elif self._phase is not _Phase.SERVING:
                    return number
                else:
                    # A service manager sends SIGTERM. The other signals come from a terminal. There, a person waits, so
                    # the server stops without a delay.
                    delay = self._drain_delay if number == signal.SIGTERM else 0.0
                    log.info(
                        "received %s: stopping%s", name, f" after serving for another {delay:g} s" if delay else ""
                    )
                    notify("STOPPING=1")
                    for child in self._children:
                        child.order("drain")
                    self._phase, self._until = _Phase.DRAINING, monotonic() + delay
        return None

    def _reload(self) -> None:
        log.info("received SIGHUP: reading the tokens again")
        notify("RELOADING=1", f"MONOTONIC_USEC={round(monotonic() * 1e6)}")
        for child in self._children:
            child.ready = False
            child.order("reload")

    def _stop(self) -> None:
        if self._phase < _Phase.ENDING:
            self._close()
            self._phase, self._until = _Phase.ENDING, monotonic() + STOPPING
            for child in self._children:
                child.due = inf
                child.order("end")

    def _look(self) -> None:
        """Kill children that have not reported for too long. Killed children are replaced, like all dead ones."""
        now = monotonic()
        if now < self._next_look:
            return
        self._next_look = now + ALIVE_EVERY
        notify("WATCHDOG=1")
        for child in self._children:
            child.silent += 1
            if child.silent == SILENT_LOOKS and child.process is not None and self._phase < _Phase.ENDING:
                silence = SILENT_LOOKS * ALIVE_EVERY
                log.error(
                    "%s (process %s) has not responded for %g s: killing it", child.name, child.process.pid, silence
                )
                child.process.kill()

    def _kill(self, why: str) -> None:
        self._phase, self._until = _Phase.KILLED, inf
        for child in self._children:
            if child.process is not None:
                log.warning("killing %s: %s", child.name, why)
                child.process.kill()

    # ------------------------------------------------------------------ children

    def _start(self, child: _Child) -> None:
        child.line, theirs = _processes.Pipe()
        child.process = _processes.Process(target=self._become, args=(child, theirs), name=child.name)
        child.process.start()
        theirs.close()
        if self._phase is _Phase.DRAINING:
            child.order("drain")
        child.began, child.due, child.silent = monotonic(), inf, 0
        child.starts += 1

    def _become(self, child: _Child, theirs: Connection) -> None:
        """Run the job of a child, in the child process. `theirs`: the child's end of its connection."""
        # A terminal sends Ctrl-C to all its processes, and systemd sends SIGTERM to all processes of a unit. Children
        # ignore both, because the supervisor decides when each child ends.
        for number in (*SIGNALS, *MEANINGLESS, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        for fd in (self._signalled, self._signal):
            os.close(fd)
        for other in self._children:  # otherwise the connections would not report the supervisor's death
            other.hang_up()
        os.set_blocking(theirs.fileno(), False)

        def report(said: Report) -> None:
            # An error means that the supervisor is dead, or that it is suspended and the pipe is full. The report is
            # not needed then.
            with suppress(OSError):
                theirs.send(said)

        code = 1
        try:
            child.job(theirs, report)
            code = 0
        except IssuerError as error:
            report(error)
        except BaseException as error:
            log.exception("%s failed", child.name)
            report(IssuerError(f"{child.name} failed with {type(error).__name__}: the log has the details"))
        # os._exit does not wait for other threads, which may still wait for Redis or the store.
        logging.shutdown()
        os._exit(code)

    def _wait(self) -> None:
        """Wait for a signal, a report, the end of a process, or the next moment at which something is due."""
        moments = (self._next_look, self._until, *(child.due for child in self._children))
        lines = {each.line: each for each in self._children if each.line is not None}
        ends = {each.process.sentinel: (each, each.process) for each in self._children if each.process is not None}
        for at in wait([self._signalled, *lines, *ends], max(0.0, min(moments) - monotonic())):
            if isinstance(at, Connection):
                self._reported(lines[at])
            elif at in ends:
                self._died(*ends[at])

    def _reported(self, child: _Child) -> None:
        try:
            said: Report = child.line.recv() if child.line is not None else "alive"
        except (EOFError, OSError):
            child.hang_up()
            return
        child.silent = 0
        if said == "ready":
            child.served = child.ready = True
            if self._phase is _Phase.SERVING and all(each.ready for each in self._children):
                self._all_ready()
        elif isinstance(said, IssuerError):
            if child.starts == 1 and (not child.served or isinstance(said, ConfigurationError)):
                # The first process of this child could not start. End the server, so that an operator corrects the
                # error. After the start, an error is only logged, because the other processes still serve.
                self._error = self._error or said
                self._stop()
            else:
                log.error("%s: %s", child.name, said)

    def _all_ready(self) -> None:
        notify("READY=1")
        if self._serving:
            log.info("%s", self._serving)
            self._serving = ""

    def _died(self, child: _Child, process: ForkProcess) -> None:
        while child.line is not None and child.line.poll():
            self._reported(child)
        process.join()
        code, pid = process.exitcode or 0, process.pid or 0
        process.close()
        child.process = None
        child.hang_up()
        self._ended(pid)
        if self._phase >= _Phase.ENDING:
            return
        now = monotonic()
        child.deaths = 0 if now - child.began >= SOUND else child.deaths + 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(child.deaths - 1, 10)) if child.deaths else 0.0
        child.due = now + pause
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"
        log.error("%s (process %s) ended %s: starting a new one in %.3g s", child.name, pid, how, pause)
