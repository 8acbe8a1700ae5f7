"""The command line: parses, calls the public face, maps errors to exit codes."""

import os
import signal
import sys

if os.getpid() == 1:
    # The kernel throws a signal away that the first process of a container has no handler for, and what follows takes
    # up to two seconds to import.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))

from issuer.cli.group import main

__all__ = ["main"]
