"""Exit codes, and the one place where errors become a message and a code."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from difflib import get_close_matches
from itertools import takewhile
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

import click

from issuer import errors
from issuer.advice import command_line
from issuer.errors import IssuerError, Unavailable
from issuer.terminal import say
from issuer.times import lasting
from issuer.views import view

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNKNOWN_TAG: Final = 3
PROBLEM: Final = 4
UNREACHABLE: Final = 5
#: The exit code that shells report for a program that SIGINT ended.
INTERRUPTED: Final = 130

#: The meaning of each code, for `issuer -h` and the page of the command line.
MEANINGS: Final = {
    OK: "success",
    FAILED: "any other error, or the answer `no` to a question",
    USAGE: "wrong usage, argument or configuration",
    UNKNOWN_TAG: "the tag does not exist",
    PROBLEM: "a check found a problem, or stored data is damaged or outdated",
    UNREACHABLE: "Redis, the store or a machine number is unavailable; try again",
    INTERRUPTED: "interrupted with Ctrl-C (by SIGTERM: 143, by SIGHUP: 129)",
}

_CODES: Final = (
    (errors.UnknownTag, UNKNOWN_TAG),
    ((errors.InvalidArgument, errors.ConfigurationError), USAGE),
    ((errors.StoreBehind, errors.CorruptState, errors.JournalDamaged), PROBLEM),
    ((Unavailable, errors.FenceError), UNREACHABLE),
)

#: The option with which results are JSON, and so are errors.
_AS_JSON: Final = "--json"

_F = TypeVar("_F", bound=Callable[..., Any])


def json_option(told: str = "Print JSON.") -> Callable[[_F], _F]:
    """Add `--json`: the command gets it as `as_json`, and its errors are JSON as well."""
    return click.option(_AS_JSON, "as_json", is_flag=True, help=told)


def code_of(error: IssuerError) -> int:
    """Return the exit code that the error stands for."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def said(error: object) -> str:
    """Return a message; that of an error of the library in the words of the command line."""
    return error.told(command_line) if isinstance(error, IssuerError) else str(error)


def logged(record: logging.LogRecord) -> str:
    """Return what a log record says, errors in it in the words of the command line."""
    shown = copy(record)
    if isinstance(record.args, tuple):
        shown.args = tuple(said(each) if isinstance(each, IssuerError) else each for each in record.args)
    return shown.getMessage()


def complain(message: object) -> None:
    """Write `error: message` to stderr; of an error that may pass, when to try again."""
    again = f"; try again in {lasting(message.retry_after)}" if isinstance(message, Unavailable) else ""
    say(f"{click.style('error:', fg='red', bold=True)} {said(message)}{again}")


class Warnings(logging.Handler):
    """Warnings of the library, as talk on stderr.

    Beside JSON it is held back until the end: there an error is one object, and has the warnings in it.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self.as_json = as_json
        self._held: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, now or in the end."""
        if self.as_json:
            self._held.append(record)
        else:
            self._say(record)

    def end(self) -> None:
        """Say what was held back."""
        held, self._held = self._held, []
        for record in held:
            self._say(record)

    def fail(self, error: object, code: str = "usage", kind: str = "UsageError") -> None:
        """Report the error that ends the command: by its message, or as one object, the warnings in it.

        `code`, `kind`: those of an error that isn't the library's.
        """
        if not self.as_json:
            complain(error)
            return
        other = {"error": kind, "message": "", "tag": None, "code": code}
        content = view(error) if isinstance(error, IssuerError) else other
        held, self._held = self._held, []
        warned = {"warnings": [logged(record) for record in held]} if held else {}
        say(json.dumps(content | {"message": said(error)} | warned))

    def _say(self, record: logging.LogRecord) -> None:
        word = record.levelname.lower()
        hue = "yellow" if record.levelno < logging.ERROR else "red"
        say(f"{click.style(f'{word}:', fg=hue)} {logged(record)}")


class Edge(click.Group):
    """A group whose `main` ends the program with one of the codes above, and never shows users a traceback."""

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]  # the rest as it is
        """Run the command line and exit; with standalone_mode=False, return or raise instead.

        A command that was to print JSON reports its error as JSON too, on stderr, also an error of usage.
        """
        _open_streams()
        ends = options.get("standalone_mode", True)
        options["standalone_mode"] = False
        if not ends:
            return super().main(args, **options)
        run = super().main
        said = sys.argv[1:] if args is None else args
        warnings = Warnings(as_json=_AS_JSON in takewhile(lambda each: each != "--", said))
        logger = logging.getLogger("issuer")
        logger.addHandler(warnings)
        try:
            with ending_in_order():
                code = _ended(lambda: run(args, **options), warnings)
            warnings.end()
        finally:
            logger.removeHandler(warnings)
        sys.exit(code)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program like Ctrl-C does, with 128 + the signal as exit code.

    Ignored signals stay ignored, as SIGHUP under nohup. In another thread than the main one, which signals never reach,
    nothing is changed.
    """

    def ended(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        handled = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
        before = {number: signal.signal(number, ended) for number in handled}
        before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open_streams() -> None:
    """Have stdin, stdout and stderr lead somewhere, as a shell's `>&-` may have closed them.

    Python has None in their place then; and the next file that is opened, perhaps the store's, would get their number,
    and all that a library in C writes to stderr.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            while os.open(os.devnull, os.O_RDWR) < number:
                pass
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _ended(run: Callable[[], object], warnings: Warnings) -> int:
    code: object = FAILED
    try:
        code = run()
        sys.stdout.flush()
    except click.Abort as abort:
        if isinstance(abort.__cause__, KeyboardInterrupt):
            return INTERRUPTED
        complain("aborted")
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        code = USAGE
    except click.UsageError as error:
        if error.ctx is not None and not warnings.as_json:
            say(error.ctx.get_usage())
        problem = _no_option(error) if isinstance(error, click.NoSuchOption) else error.format_message()
        warnings.fail(problem)
        code = USAGE
    except click.ClickException as error:
        warnings.fail(error.format_message())
        code = error.exit_code
    except IssuerError as error:
        warnings.fail(error)
        code = code_of(error)
    except BrokenPipeError:
        _forget_stdout()
    except OSError as error:
        warnings.fail(error, "os", type(error).__name__)
        # If it was stdout, the interpreter's last flush would fail as well, and exit with a code of its own.
        _forget_stdout()
    return code if isinstance(code, int) else OK


def _no_option(error: click.NoSuchOption) -> str:
    """Return what to write in place of an option that the command doesn't have."""
    name, context = error.option_name, error.ctx
    root = None if context is None else context.find_root()
    if context is not root and root is not None and any(name in param.opts for param in root.command.params):
        return f"{name} must be before the command: issuer {name} ... {context and context.info_name}"
    # The dashes, which click compares as well, make any two options look related.
    near = get_close_matches(name.lstrip("-"), [each.lstrip("-") for each in error.possibilities or ()])
    return error.message + (f" Did you mean --{near[0]}?" if near else "")


def _forget_stdout() -> None:
    """Let the interpreter's last flush go nowhere: the reader has all that it wanted, or can't have more."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
