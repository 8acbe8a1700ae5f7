"""Exit codes of the command line, and the conversion of errors into messages and exit codes."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import takewhile
from types import FrameType
from typing import Any, Final, NoReturn

import click

from issuer import errors
from issuer.cli.options import F
from issuer.core.events import rejected_log
from issuer.errors import IssuerError, Unavailable
from issuer.terminal import say
from issuer.times import lasting
from issuer.views import message_of, said, view

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNKNOWN_TAG: Final = 3
PROBLEM: Final = 4
UNREACHABLE: Final = 5
#: The exit codes that shells report after SIGINT and SIGPIPE.
INTERRUPTED: Final = 130
UNREAD: Final = 141

_CODES: Final = (
    (errors.UnknownTag, UNKNOWN_TAG),
    ((errors.InvalidArgument, errors.ConfigurationError), USAGE),
    ((errors.StoreBehind, errors.CorruptState, errors.JournalDamaged), PROBLEM),
    ((Unavailable, errors.FenceError), UNREACHABLE),
)

#: The option of commands that print results and errors as JSON.
_AS_JSON: Final = "--json"
#: The option of commands about many tags that print a JSON object for each tag.
_AS_LINES: Final = "--json-lines"


def json_option(told: str = "Print JSON.") -> Callable[[F], F]:
    """Return a decorator that adds the option --json, as the argument `as_json`. `told`: help of the option."""
    return click.option(_AS_JSON, "as_json", is_flag=True, help=told)


#: A decorator that adds the option --json-lines, as the argument `as_lines`.
json_lines_option = click.option(
    _AS_LINES,
    "as_lines",
    is_flag=True,
    help="Print one JSON object per line, for each tag as soon as it is done; messages go to stderr.",
)


def check_json(*, as_json: bool, as_lines: bool) -> None:
    if as_json and as_lines:
        raise click.UsageError(f"give {_AS_JSON} or {_AS_LINES}, not both")


def code_of(error: IssuerError) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def complain(message: object) -> None:
    """Write an error to stderr. For an error of the class Unavailable, add how long to wait before a retry."""
    again = f"; try again in {lasting(message.retry_after)}" if isinstance(message, Unavailable) else ""
    say(f"{click.style('error:', fg='red', bold=True)} {said(message)}{again}")


class Warnings(logging.Handler):
    """Writes the warnings of the library to stderr.

    With --json, it keeps the warnings until the command ends. If the command fails, the JSON object of the error
    contains the warnings.
    """

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self.as_json = as_json
        self._held: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self.as_json:
            self._held.append(record)
        else:
            self._say(record)

    def end(self) -> None:
        held, self._held = self._held, []
        for record in held:
            self._say(record)

    def fail(self, error: object, code: str = "usage", kind: str = "UsageError") -> None:
        """Write the error that ends the command. With --json, write a JSON object that also contains the kept warnings.

        `code` and `kind`: code and class name in the JSON object, for an error that is no IssuerError.
        """
        if not self.as_json:
            complain(error)
            return
        other = {"error": kind, "message": "", "tag": None, "code": code}
        content = view(error) if isinstance(error, IssuerError) else other
        held, self._held = self._held, []
        warned = {"warnings": [message_of(record) for record in held]} if held else {}
        say(json.dumps(content | {"message": said(error)} | warned))

    def _say(self, record: logging.LogRecord) -> None:
        word = record.levelname.lower()
        hue = "yellow" if record.levelno < logging.ERROR else "red"
        say(f"{click.style(f'{word}:', fg=hue)} {message_of(record)}")


class Edge(click.Group):
    """A group of commands. It ends the program with one of the exit codes above, and never with a traceback."""

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]  # the rest as it is
        """Run the command line, and exit. With --json, write all errors to stderr as JSON, also usage errors.

        With standalone_mode=False, do not exit: return the result of the command or raise its error.
        """
        _open_streams()
        ends = options.get("standalone_mode", True)
        options["standalone_mode"] = False
        if not ends:
            return super().main(args, **options)
        run = super().main
        said = sys.argv[1:] if args is None else args
        options_given = set(takewhile(lambda each: each != "--", said))
        warnings = Warnings(as_json=not options_given.isdisjoint({_AS_JSON, _AS_LINES}))
        # Failed calls are not shown, because the command itself reports the error.
        warnings.addFilter(lambda record: record.name != rejected_log.name)
        logger = logging.getLogger("issuer")
        logger.addHandler(warnings)
        try:
            with ending_in_order():
                code = _ended(lambda: run(args, **options), warnings)
            warnings.end()
        finally:
            logger.removeHandler(warnings)
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. If the program that read the output has ended, end with UNREAD: click would end with 1."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_stdout()
            ctx.exit(UNREAD)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Return a context in which SIGTERM and SIGHUP end the program as Ctrl-C does: an exception ends the `with` block.

    The exit code is 128 + the number of the signal. Ignored signals stay ignored, for example SIGHUP under nohup.
    Outside of the main thread, nothing is changed.
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
    """If stdin, stdout or stderr is closed, for example by `>&-` in a shell, open it on /dev/null.

    If stderr stayed closed, the next opened file, such as the store, could get its descriptor. C libraries would then
    write their messages into this file. In Python, `sys.stderr` is None if stderr is closed.
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
            say("interrupted")
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
        code = UNREAD
    except OSError as error:
        warnings.fail(error, "os", type(error).__name__)
        # A write to stdout may have failed. Then the flush at the end of the interpreter would fail too, and change the
        # exit code.
        _forget_stdout()
    return code if isinstance(code, int) else OK


def _no_option(error: click.NoSuchOption) -> str:
    name, context = error.option_name, error.ctx
    root = None if context is None else context.find_root()
    if context is not root and root is not None and any(name in param.opts for param in root.command.params):
        return f"{name} must be before the command: issuer {name} ... {context and context.info_name}"
    # Compare the names without their dashes. click compares them with their dashes, so that all options look similar.
    near = get_close_matches(name.lstrip("-"), [each.lstrip("-") for each in error.possibilities or ()])
    return error.message + (f" Did you mean --{near[0]}?" if near else "")


def _forget_stdout() -> None:
    """Redirect stdout to /dev/null, so that the flush of stdout at the end of the interpreter cannot fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
