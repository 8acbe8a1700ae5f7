"""`issuer serve`: creates the sockets, and starts the workers and the keeper of a server.

Workers serve callers. The keeper loads segments (ranges of numbers) into Redis, for clients that draw from Redis
without this library.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp
from typing import Final

from issuer.doors.access import Access
from issuer.doors.console.options import ConsoleOptions
from issuer.doors.server import logs
from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import close, connections, listen, raise_limit
from issuer.doors.server.supervisor import ALIVE_EVERY, SIGNALS, Job, Order, Report, Supervisor, catch, read_order
from issuer.doors.server.watch import keep
from issuer.errors import ConfigurationError
from issuer.tally import Tally
from issuer.wiring import connect
from issuer_persistence.errors import StoreError
from issuer_persistence.opening import store_class

log = logging.getLogger("issuer.doors.server")

#: Environment variable with the directory of the metrics files. prometheus_client reads it when it is imported.
FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"


def serve(options: ServerOptions) -> int:
    """Serve until a signal arrives. Return the exit code. Raises ConfigurationError if the server cannot start."""
    catch(SIGNALS, lambda *_: sys.exit(0))  # exit handlers then remove the temporary files
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # there is nothing to reload yet
    logs.begin(options.settings.log_format, verbose=options.verbose)
    raise_limit()
    connections(len(options.endpoints), options.settings.redis_connections)  # raises if too few files can be open
    with ExitStack() as ends:
        sockets = listen(options.endpoints, ends)
        if options.settings.workers > 1 or options.has_redis or options.settings.console:
            ends.enter_context(_counting_together())
        _prepare(options)
        from issuer.doors.server import worker
        from issuer.metrics import forget

        access = Access(options.settings.tokens or None)
        console = _console(options, ends) if options.settings.console else None
        jobs: list[tuple[str, Job]] = [
            (f"worker {number}", partial(worker.run, options, sockets, access, first=number == 1, console=console))
            for number in range(1, options.settings.workers + 1)
        ]
        if console is not None:
            jobs.append(("the collector of the console", partial(_collect, options, console)))
        if options.has_redis and not options.console_only:
            jobs.append(("the keeper", partial(_keep, options)))
        where = [
            each.shown(sockets[each.name].getsockname(), tls=bool(options.settings.tls_cert))
            for each in options.endpoints
        ]
        many = "one worker" if options.settings.workers == 1 else f"{options.settings.workers} workers"
        code = Supervisor(
            jobs,
            f"serving {' and '.join(where)} with {many}",
            forget,
            drain_delay=options.settings.drain_delay,
            close=partial(close, sockets, options.endpoints),
        ).run()
    log.info("stopped")
    return code


@contextmanager
def _counting_together() -> Iterator[None]:
    """Let all processes write their metrics to one directory, so that each process can show the metrics of all."""
    if os.environ.get(FOLDER):
        yield
        return
    try:
        made = mkdtemp(prefix="issuer-starting-")
    except OSError as error:
        raise ConfigurationError(
            f"cannot create a temporary folder for the metrics ({error.strerror}): set TMPDIR to a folder that this "
            "user can write, or mount one at /tmp"
        ) from error
    _remove_abandoned()
    # All processes of this server inherit the lock. It lasts until the last of them ends.
    fcntl.flock(os.open(made, os.O_RDONLY), fcntl.LOCK_EX)
    folder = os.environ[FOLDER] = f"{gettempdir()}/issuer-metrics-{made[-8:]}"
    try:
        Path(made).rename(folder)  # only now, because folders without a lock are removed
        yield
    finally:
        del os.environ[FOLDER]
        rmtree(folder, ignore_errors=True)


def _remove_abandoned() -> None:
    """Remove the folders of servers that were killed: those that no process has locked."""
    for folder in Path(gettempdir()).glob("issuer-metrics-*"):
        with suppress(OSError):  # its server runs, or it belongs to another user
            fd = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(folder)
            finally:
                os.close(fd)


def _prepare(options: ServerOptions) -> None:
    """Import the modules of the workers before the workers are forked."""
    try:
        import granian  # noqa: F401 - only imported
        from prometheus_client import disable_created_metrics
    except ModuleNotFoundError as error:
        raise ConfigurationError(f'{error.name} is missing: pip install ".[server]" in a checkout') from error
    if options.settings.console:
        try:
            import_module("issuer.doors.console.console")
        except ModuleNotFoundError as error:
            raise ConfigurationError(f'{error.name} is missing: pip install ".[console]" in a checkout') from error
    disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client's
    for endpoint in options.endpoints:
        import_module("issuer.doors.web.app" if endpoint.name == "http" else "issuer.doors.resp.server")
    with suppress(StoreError):  # the workers report the error when they connect
        store_class(options.settings.store_url)


def _console(options: ServerOptions, ends: ExitStack) -> ConsoleOptions:
    """Return the options of the console. The file of its board is removed when the server ends."""
    from issuer.board.file import BoardFile

    file = Path(os.environ[FOLDER]) / f"console-{os.getpid()}.sqlite"
    BoardFile.create(file)
    ends.callback(BoardFile.remove, file)
    return ConsoleOptions(
        file, secrets.token_bytes(32), changes=options.settings.console_changes, alone=options.console_only
    )


def _collect(
    options: ServerOptions, console: ConsoleOptions, orders: Connection, report: Callable[[Report], None]
) -> None:
    from issuer.board.collector import collect
    from issuer.board.file import BoardFile

    stop = _ends_with_supervisor(orders, report)
    with connect(**options.given, scheduler=None) as issuer:
        report("ready")
        collect(issuer, BoardFile(console.file), stop)


def _ends_with_supervisor(orders: Connection, report: Callable[[Report], None]) -> threading.Event:
    """Return an event that is set when this process must end. A thread waits for the order, and reports for it."""
    stop = threading.Event()

    def obey() -> None:
        order: Order | None = None
        while order != "end":
            order = read_order(orders) if orders.poll(ALIVE_EVERY) else None
            report("ready" if order == "reload" else "alive")
        stop.set()

    threading.Thread(target=obey, daemon=True).start()
    return stop


def _keep(options: ServerOptions, orders: Connection, report: Callable[[Report], None]) -> None:
    from issuer.metrics import install

    stop = _ends_with_supervisor(orders, report)
    with connect(**options.given) as issuer:
        tally = Tally()
        tally.lines_dropped = logs.dropped
        install(issuer).serve(tally)
        report("ready")
        keep(issuer, options.settings, stop)
