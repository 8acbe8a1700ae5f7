"""Programs that tests start: forked from a process that has imported everything, instead of a fresh interpreter each.

The arguments are those that would follow `python`. A start takes some 15 ms where an interpreter that imports the
command line takes 450 ms of processor time. What is about the interpreter itself (its start, its closed streams,
PYTHONPATH, another Python) takes `subprocess` and `sys.executable`.
"""

import atexit
import contextlib
import logging
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Mapping
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, Self
from unittest import mock

REPOSITORY = Path(__file__).resolve().parents[1]
PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT

_context = multiprocessing.get_context("forkserver")
# The last one reads the version, for which git is run in a checkout.
_OURS = ("cli.group", "wiring", "api.blocking", "api.aio", "doors.resp.commands")
_STORES = ("mongodb", "sqlite", "memory", "journalled")
_LIBRARIES = ("redis.asyncio", "redis.sentinel", "redis.cluster", "pymongo", "apscheduler.schedulers.background")
_context.set_forkserver_preload(
    [
        *("tests.programs", *_LIBRARIES),
        *(f"issuer.{name}" for name in _OURS),
        *(f"issuer.cli.commands.{path.stem}" for path in (REPOSITORY / "issuer/cli/commands").glob("[a-z]*.py")),
        *(f"issuer_persistence.{name}" for name in _STORES),
    ]
)

_Target = int | IO[Any] | None


def children(pid: int) -> list[int]:
    """Return the processes that this one has started and that run, in the order in which they were started."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = each.read_text().rpartition(") ")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(each.parent.name))
    return sorted(found)


class Program:
    """A running program with the face of `subprocess.Popen`; streams that are PIPE carry text.

    Streams that are not named are those of the test. `env` is all that the program has of an environment; without it,
    the test's own as it is now.
    """

    def __init__(
        self,
        *arguments: str,
        stdin: _Target = None,
        stdout: _Target = None,
        stderr: _Target = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = [sys.executable, *arguments]
        self._ours: list[IO[str]] = []
        theirs: list[int] = []
        try:
            inner, self.stdin = self._stream(stdin, 0, theirs)
            outer, self.stdout = self._stream(stdout, 1, theirs)
            error, self.stderr = (outer, None) if stderr == STDOUT else self._stream(stderr, 2, theirs)
            self._process: ForkServerProcess = _context.Process(
                target=_run,
                args=(
                    arguments,
                    [DupFd(each) for each in (inner, outer, error)],
                    dict(os.environ if env is None else env),
                    str(cwd or Path.cwd()),
                    start_new_session,
                ),
            )
            _start(self._process)
        except BaseException:
            self._close_streams()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        _running.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it if it runs, wait for its end, and close its streams."""
        self.kill()
        self.wait()
        self._close_streams()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        """The exit code, or the number of the signal that ended it, negative; None as long as it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        # The server from which it was forked waits for it, and may have told nobody yet.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Send `input`, close stdin, and return what is printed until the program has ended."""
        end = None if timeout is None else time.monotonic() + timeout
        printed: dict[IO[str], str] = {}

        def read(stream: IO[str]) -> None:
            printed[stream] = stream.read()

        readers = [threading.Thread(target=read, args=(each,), daemon=True) for each in self._ours if each.readable()]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended, or reads no more
                self.stdin.write(input or "")
                self.stdin.close()
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        for stream in list(printed):  # read to its end, as Popen closes it then
            stream.close()
        return tuple("" if each is None else printed.get(each, "") for each in (self.stdout, self.stderr))  # type: ignore[return-value]  # two of them

    def _stream(self, target: _Target, standard: int, theirs: list[int]) -> tuple[int, IO[str] | None]:
        """Return the program's end of a stream, and ours if it is a pipe."""
        if target is None:
            return standard, None
        if target == DEVNULL:
            theirs.append(os.open(os.devnull, os.O_RDWR))
            return theirs[-1], None
        if target != PIPE:
            return (target if isinstance(target, int) else target.fileno()), None
        reading, writing = os.pipe()
        mine, its, mode = (writing, reading, "w") if standard == 0 else (reading, writing, "r")
        theirs.append(its)
        ours: IO[str] = os.fdopen(mine, mode, encoding="utf-8")
        self._ours.append(ours)
        return its, ours

    def _close_streams(self) -> None:
        for stream in self._ours:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def run(
    *arguments: str,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 180.0,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run(capture_output=True, text=True)` does."""
    stdin = DEVNULL if input is None else PIPE
    with Program(*arguments, stdin=stdin, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd) as program:
        out, err = program.communicate(input, timeout)
        return subprocess.CompletedProcess(program.args, program.wait(), out, err)


def fresh(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | str = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, and see it end well."""
    line = [sys.executable, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False, env=env, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


_running: weakref.WeakSet[Program] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # multiprocessing waits for its processes at the end of this one.
    for program in list(_running):
        program.kill()


def _start(process: ForkServerProcess) -> None:
    """Start it; the server from which it is forked finds the modules of the checkout, whatever the test has set."""
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "persistence"), *([before] if before else [])])
    with mock.patch.dict(os.environ, PYTHONPATH=path):
        process.start()


def _run(arguments: tuple[str, ...], streams: list[Any], env: dict[str, str], cwd: str, new_session: bool) -> None:
    """Become what `python *arguments` is, and end as it does."""
    if new_session:
        os.setsid()
    given = [each.detach() for each in streams]
    for standard, fd in enumerate(given):
        os.dup2(fd, standard)
    for fd in {*given} - {0, 1, 2}:
        os.close(fd)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        lines = os.isatty(fd) or fd == 2
        setattr(sys, name, os.fdopen(fd, "w", encoding="utf-8", closefd=False, buffering=1 if lines else -1))
        setattr(sys, f"__{name}__", getattr(sys, name))
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info >= (3, 13):  # there multiprocessing has unregistered what was registered before the fork
        from issuer.engine.blocking import close_all

        atexit.register(logging.shutdown)
        atexit.register(close_all)
    if env.get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    sys.exit(_played(arguments))


def _played(arguments: tuple[str, ...]) -> int:
    code, interrupted = 1, False
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        elif arguments[0] == "-c":
            sys.argv = ["-c", *arguments[2:]]
            exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as the interpreter does
        else:
            sys.argv = list(arguments)
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        code = {None: 0}.get(ended.code, 1) if not isinstance(ended.code, int) else ended.code  # type: ignore[arg-type]  # a str is no key there
    except KeyboardInterrupt:
        traceback.print_exc()
        interrupted = True
    except BaseException:  # noqa: BLE001 - the interpreter prints it, whatever it is
        traceback.print_exc()
    # In this order the interpreter ends; a process of multiprocessing leaves the second out.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if interrupted:  # the interpreter ends by the signal, so that its parent sees it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return code & 0xFF
