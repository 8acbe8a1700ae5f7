"""The command line: parses, calls the public face, maps errors to exit codes."""

import os
import signal
import sys

if os.getpid() == 1:
    # In a container, the kernel discards signals to the first process that have no handler. The imports below take up
    # to two seconds.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))

from issuer.cli.group import main

__all__ = ["main"]
