"""Passwords that expire: each new connection gets its password from a function of the program, or from a command."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from issuer_persistence.clock import monotonic
from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed
from issuer_persistence.holding import acquired

#: How long the output of a command is used, in seconds. A token of AWS is valid for 15 minutes. `az account
#: get-access-token` may print a token that is valid for 5 minutes more.
KEPT = 300.0

#: Time limit of a command, in seconds.
LONGEST = 30.0

#: If a command fails, or prints a refused password again, it runs again after this many seconds at the earliest.
AGAIN = 1.0


class Credentials:
    """A function that returns the password, or a pair of the user and the password. Each new connection calls it.

    Args:
        name: Name of the argument or setting, for messages.
        ask: The function. Threads may call it at the same time.
    """

    def __init__(self, name: str, ask: Callable[[], object]) -> None:
        self.name = name
        self._ask = ask

    def get(self, left: float) -> tuple[str, str]:  # noqa: ARG002 - the time that a function takes is its own
        """Return the user, which is "" if the URL names it, and the password.

        Args:
            left: Longest wait for a command in seconds, above 0.

        Raises:
            Unconfirmed: There is no password now.
            Misconfigured: The function does not return a password, or the command cannot run.
        """
        try:
            found = self._ask()
        except Exception as error:
            raise Unconfirmed(f"{self.name}: the function raised {type(error).__name__}") from error
        match found:
            case str() as password if password:
                return "", password
            case (str() as user, str() as password) if password:
                return user, password
        raise Misconfigured(f"{self.name}: return a password, or a pair (user, password), not {type(found).__name__}")

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
                return Misconfigured(f"{program} cannot be started: {error.strerror}")
            self._ends = monotonic() + LONGEST
        running, output = self._running, None
        with suppress(subprocess.TimeoutExpired):  # which has the output
            output, _ = running.communicate(timeout=max(0.0, min(end, self._ends) - monotonic()))
        if output is None and monotonic() < self._ends:
            raise Unconfirmed(f"{program} has not ended yet")
        self._running = None
        if output is None:
            running.kill()
            running.stdout.close()  # type: ignore[union-attr]  # it is a pipe
            running.wait()
            return Unconfirmed(f"{program} has not ended within {LONGEST:g} s")
        if running.returncode:
            return Unconfirmed(f"{program} has ended with exit status {running.returncode}")
        password = output.decode(errors="replace").rstrip("\r\n")
        if not password.isprintable() or not password:
            return Misconfigured(f"{program} must print the password, as one line of text, and nothing else")
        return password
