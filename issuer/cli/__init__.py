"""The command line: parses arguments, calls the public interface, and converts errors to exit codes."""

import os
import signal

if os.getpid() == 1:
    # This is the first process of a container. If the first process has no handler for a signal, the kernel discards
    # the signal. The handler is set here, because the imports below take up to two seconds. It must not raise: a
    # callback of importlib has swallowed SystemExit, and the server went on.
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))

from issuer.cli.group import main

__all__ = ["main"]
