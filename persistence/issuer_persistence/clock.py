"""The clock that measures durations. Nobody can set it, and libraries for tests do not stop it."""

from __future__ import annotations

import time
from functools import partial

#: Time in seconds, and in ns, on the clock of `time.monotonic`: freezegun replaces that function in all modules.
monotonic = partial(time.clock_gettime, time.CLOCK_MONOTONIC)
monotonic_ns = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)
