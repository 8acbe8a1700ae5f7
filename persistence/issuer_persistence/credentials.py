"""Passwords that expire: each new connection gets its password from a function of the program, or from a command."""

from __future__ import annotations

import contextvars
import errno
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from issuer_persistence.clock import monotonic
from issuer_persistence.errors import SHORTAGE, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.forks import leave_signals
from issuer_persistence.holding import acquired

#: How long the output of a command is used, in seconds. A token of AWS is valid for 15 minutes. `az account
#: get-access-token` may print a token that is valid for 5 minutes more.
KEPT = 300.0

#: Time limit of a command, in seconds.
LONGEST = 30.0

#: If a command fails, or prints a refused password again, it runs again after this many seconds at the earliest.
AGAIN = 1.0

#: If this many calls of a function have not returned, it is not called again before one of them returns.
LATE_MOST = 16

#: Most bytes of a command's output: as many as a pipe holds.
_OUTPUT_MOST = 65_536

#: How long a killed command is waited for, in seconds.
_KILLED = 1.0

#: Error numbers of the system if no process can start now.
_PASSING = SHORTAGE | {errno.EAGAIN, errno.EINTR}


class Credentials:
    """A function that returns the password, or a pair of the user and the password. Each new connection calls it.

    Args:
        name: Name of the argument or setting, for messages.
        ask: The function. Threads may call it at the same time.
    """

    def __init__(self, name: str, ask: Callable[[], object]) -> None:
        self.name = name
        self._ask = ask
        #: Threads with calls of the function for which nobody waits any more.
        self._late: set[threading.Thread] = set()

    def get(self, left: float) -> tuple[str, str]:
        """Return the user, which is "" if the URL names it, and the password.

        Args:
            left: Longest wait for the function or the command in seconds, above 0.

        Raises:
            Unconfirmed: There is no password now.
            Misconfigured: The function does not return a password, or the command cannot run.
        """
        found, error = self._asked(left)
        if error is not None:
            raise Unconfirmed(f"{self.name}: the function raised {type(error).__name__}") from error
        match found:
            case str():
                user, password = "", found
            case (str(), str()):
                user, password = found
            case _:
                problem = f"return a password, or a pair (user, password), not {type(found).__name__}"
                raise Misconfigured(f"{self.name}: {problem}")
        if not password:
            raise Unconfirmed(f"{self.name}: the function returned an empty password")
        if not (user + password).isprintable():
            raise Misconfigured(f"{self.name}: the user or the password has a character that cannot be printed")
        return user, password

    def _asked(self, left: float) -> tuple[object, BaseException | None]:
        """Call the function in a thread of its own. Return its result, or its error. Raises Unconfirmed."""
        self._late -= {each for each in self._late.copy() if not each.is_alive()}
        if len(self._late) >= LATE_MOST:
            raise Unconfirmed(f"{self.name}: {LATE_MOST} calls of the function have not returned yet")
        answers: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                answers.put((context.run(self._ask), None))
            except BaseException as error:  # noqa: BLE001 - raised in the caller
                answers.put((None, error))

        def run() -> None:
            leave_signals()
            call()

        thread = threading.Thread(target=run, name="issuer-credentials", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no thread can start, as while the interpreter exits
            call()
        try:
            return answers.get(timeout=left)
        except queue.Empty:
            self._late.add(thread)
            raise Unconfirmed(f"{self.name}: the function has not returned within {left:.3g} s") from None

    def refused(self, password: str) -> None:
        """Record that a server refuses the password. This never waits."""

    def forbid(self, password: object, url: str) -> None:
        """If the URL has a password, raise Misconfigured. `url`: the URL without secrets."""
        if password:
            raise Misconfigured(f"{url}: the URL has a password, and there is {self.name}: remove one of them")


class CommandCredentials(Credentials):
    """A program that prints the password. Its output is used until a server refuses it, for at most KEPT seconds.

    So a burst of new connections runs the program once. No shell is used.

    Args:
        name: Name of the setting, for messages.
        words: The program and its arguments.
    """

    def __init__(self, name: str, words: Sequence[str]) -> None:
        self.name = name
        self._words = words
        self._password = self._refused = ""
        self._failure: StoreError | None = None
        #: Until when the output or failure is used, and the same after the server has refused the output.
        self._until = self._until_refused = 0.0
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        self._ends = 0.0

    def get(self, left: float) -> tuple[str, str]:
        """See `Credentials.get`. A program that is still running at the deadline goes on, for the next call."""
        if self._process != os.getpid():
            if self._running is not None:
                self._running.returncode = 0  # the parent's child, for which this process cannot wait
            self._begin()
        end, held = monotonic() + left, list[threading.Lock]()
        try:
            if not acquired(self._lock, left, held):
                raise Unconfirmed(f"{self.name}: the program {self._words[0]!r} has not ended yet")
            if monotonic() >= self._until:
                self._run(end)
            if self._failure is not None:
                raise type(self._failure)(*self._failure.args)
            return "", self._password
        finally:
            for each in held:
                each.release()

    def refused(self, password: str) -> None:
        """See `Credentials.refused`. The next connection runs the program again."""
        if password == self._password:
            self._refused, self._until = password, self._until_refused

    def _run(self, end: float) -> None:
        found = self._output(end)
        now = monotonic()
        self._failure = found if isinstance(found, StoreError) else None
        self._password = "" if isinstance(found, StoreError) else found
        repeats = self._failure is not None or self._password == self._refused
        self._until_refused = now + AGAIN if repeats else 0.0
        self._until = now + (KEPT if self._failure is None else AGAIN)

    def _output(self, end: float) -> str | StoreError:
        """Return what the program prints, or its failure. Raise Unconfirmed if it is still running at `end`."""
        program = f"{self.name}: the program {self._words[0]!r}"
        if self._running is None:
            none = subprocess.DEVNULL
            try:
                self._running = subprocess.Popen(self._words, stdin=none, stdout=subprocess.PIPE, stderr=none)  # noqa: S603 - the operator's
            except OSError as error:
                kind = Unconfirmed if error.errno in _PASSING else Misconfigured
                return kind(f"{program} cannot be started: {error.strerror}")
            self._ends = monotonic() + LONGEST
        running = self._running
        with suppress(subprocess.TimeoutExpired):
            running.wait(max(0.0, min(end, self._ends) - monotonic()))
        if running.returncode is None and monotonic() < self._ends:
            raise Unconfirmed(f"{program} has not ended yet")
        self._running = None
        if running.returncode is None:
            _end(running)
            return Unconfirmed(f"{program} has not ended within {LONGEST:g} s")
        output = _printed(running)
        if running.returncode:
            return Unconfirmed(f"{program} has ended with exit status {running.returncode}")
        password = output.decode(errors="replace").rstrip("\r\n")
        if not password:
            return Unconfirmed(f"{program} has printed nothing")
        if not password.isprintable():
            return Misconfigured(f"{program} must print the password, as one line of text, and nothing else")
        return password


def _printed(ended: subprocess.Popen[bytes]) -> bytes:
    """Return what a program has printed. A child of it may hold the pipe open, so nothing is waited for."""
    with ended.stdout as pipe, suppress(BlockingIOError):  # type: ignore[union-attr]  # it is a pipe
        os.set_blocking(pipe.fileno(), False)
        return os.read(pipe.fileno(), _OUTPUT_MOST)
    return b""


def _end(running: subprocess.Popen[bytes]) -> None:
    """Kill a program. If that is not allowed, or the system does not end it, leave it alone."""
    running.stdout.close()  # type: ignore[union-attr]  # it is a pipe
    with suppress(OSError, subprocess.TimeoutExpired):
        running.kill()
        running.wait(_KILLED)
