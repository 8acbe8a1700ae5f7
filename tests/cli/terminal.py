"""A terminal for a program that behaves differently on one."""

import codecs
import fcntl
import os
import pty
import struct
import termios
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from tests.cli.conftest import PROGRAM
from tests.programs import Program
from tests.waiting import until


class Terminal:
    """`issuer ...` on a pseudo-terminal, which takes what stdout says and, unless `err` is a file, stderr too."""

    def __init__(
        self, *arguments: str, columns: int = 80, env: Mapping[str, str] | None = None, out: Path | None = None
    ) -> None:
        self._master, slave = pty.openpty()
        self.resizes(columns, 24)
        os.set_blocking(self._master, False)
        self._seen = b""
        environment = {**os.environ, "TERM": "xterm", **(env or {})}
        with out.open("wb") if out else nullcontext(slave) as stdout:
            streams: dict[str, Any] = {"stdin": slave, "stdout": stdout, "stderr": slave}
            self.process = Program(*PROGRAM, *arguments, **streams, env=environment, start_new_session=True)
        os.close(slave)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.__exit__(*error)
        os.close(self._master)

    @property
    def text(self) -> str:
        """Everything that was written so far."""
        with suppress(OSError):  # nothing more now, or the other end is closed
            while chunk := os.read(self._master, 65536):
                self._seen += chunk
        # A character whose last bytes are still to come is left out.
        return codecs.getincrementaldecoder("utf-8")().decode(self._seen).replace("\r\n", "\n")

    def shows(self, text: str, timeout: float = 60.0) -> str:
        """Wait until it shows that."""
        until(lambda: text in self.text, timeout, f"the terminal shows {text!r}")
        return self.text

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resizes(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def echoes(self) -> bool:
        """Whether it shows what is typed, and passes it on by lines, as a shell needs it."""
        mask = termios.ECHO | termios.ICANON
        return int(termios.tcgetattr(self._master)[3]) & mask == mask

    def ends(self, timeout: float = 60.0) -> int:
        """Wait until the program has ended, reading on, and return its exit code."""
        until(lambda: (self.text, self.process.poll() is not None)[1], timeout, "the program ends")
        return self.process.wait()


def answered(question: str, answer: str, *arguments: str) -> int:
    """Run a command that asks this, give the answer, and return the exit code."""
    with Terminal(*arguments, columns=250) as terminal:
        terminal.shows(question)
        terminal.types(answer)
        return terminal.ends()
