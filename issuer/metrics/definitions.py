"""Definitions of all metrics: name, kind, description, labels, and how values of several processes are merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: How the values of a gauge in several processes are merged: sum, maximum or most recent value. Values of exited
#: processes are left out.
Joined = Literal["livesum", "livemax", "livemostrecent"]

TAG: Final = ("tag",)


@dataclass(frozen=True, slots=True)
class Definition:
    """Definition of a metric. The `name` of a counter does not include the suffix `_total`.

    `joined`: how the values of several processes are merged; only for gauges.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = TAG
    joined: Joined | None = None

    @property
    def shown(self) -> str:
        """The name in Prometheus, as rules, dashboards and documents must write it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _counter(name: str, help: str, *labels: str) -> Definition:
    return Definition(f"issuer_{name}", "counter", help, (*TAG, *labels))


def _gauge(name: str, joined: Joined, help: str, *labels: str) -> Definition:
    return Definition(f"issuer_{name}", "gauge", help, labels, joined)


ISSUED = _counter("issued", "Numbers issued to callers, also those that came from the memory of a process")
DRAWS = _counter("draws", "Draws from Redis that returned numbers for callers")
ELECTIONS = _counter("elections_won", "Draws that elected this process to load the next segment")
RESERVATIONS = _counter(
    "reservations", "Requests to the store to reserve numbers, by reason and result", "reason", "result"
)
RESERVATION = Definition(
    "issuer_reservation_seconds",
    "histogram",
    "Duration of the requests to the store to reserve numbers, in seconds",
    ("reason", "result"),
)
SEGMENTS = _counter("segments_loaded", "Segments loaded into Redis")
LATE = _counter("extensions_late", "Number of times that all segments were used up before the next one was loaded")
NEAR = _counter("limits_near", "Number of times that a tag was found to be near its limit")
FENCE = _counter("fence_trips", "Number of times that Redis lost a tag's numbers, by cause", "cause")
LOST = _counter("numbers_lost", "Upper bound of the numbers that were lost in Redis and are never issued")
NOT_GIVEN_BACK = _counter(
    "give_backs_failed", "Number of times that unused numbers could not be returned and became a gap"
)
WASTED = _counter("numbers_wasted", "Numbers that processes held in memory, and neither issued nor returned")
WENT_DIRECT = _counter(
    "direct_begun", "Number of times that a process began to serve a tag in direct mode, without Redis"
)
REJOINED = _counter("direct_ended", "Number of times that a process ended direct mode and used Redis again")
LEASES = _counter("leases_drawn", "Leases drawn from Redis")
LEASES_DROPPED = _counter("leases_dropped", "Number of times that leases were dropped after a failover or a recovery")
REDIS_SILENCES = _counter("redis_silences", "Outages of Redis that draws noticed")
REDIS_SECONDS = _counter(
    "redis_silent_seconds", "Total duration of Redis outages, in seconds; an outage is added when it ends"
)
STORE_SILENCES = _counter("store_silences", "Outages of the store that reservations noticed")
STORE_BACK = _counter("store_returns", "Number of times that the store answered again after an outage")
WAITS = _counter("waits", "Waits of callers for a second or longer, or until their timeout")
WAIT_SECONDS = _counter("wait_seconds", "Total duration of waits, in seconds; a wait is added when it ends")
ALARMS = _counter("alarms", "Errors of strategies that an operator must handle, such as a clock that went back")
REFUSALS = _counter("refusals", "Calls that failed with an error instead of a number, by error code", "code")
FAILED = _counter("background_failures", "Failures of background work, by kind", "work")

REQUESTS = Definition(
    "issuer_http_requests",
    "counter",
    "HTTP requests, by route, status and name of the token",
    ("route", "status", "token"),
)
REQUEST_SECONDS = Definition(
    "issuer_http_request_seconds", "histogram", "Duration of the HTTP requests, in seconds", ("route",)
)
COMMANDS = Definition("issuer_resp_commands", "counter", "Commands over the Redis protocol", ("command",))
AUTH_FAILURES = Definition(
    "issuer_authentication_failures", "counter", "Requests with a missing or unknown token", ("protocol",)
)
LINES_DROPPED = Definition(
    "issuer_log_lines_dropped", "counter", "Lines that are missing in the log, because nobody read them in time", ()
)

REMAINING = _gauge(
    "remaining_numbers", "livemostrecent", "Numbers left in Redis, in the current and the next segment", *TAG
)
HELD = _gauge("held_numbers", "livesum", "Numbers buffered in the memory of processes", *TAG)
RUNWAY = _gauge(
    "runway_seconds",
    "livemostrecent",
    "Seconds until the remaining numbers are used up, at the rate of the last minute",
    *TAG,
)
STEP = _gauge("step_numbers", "livemostrecent", "Size of a step; with `step=auto` it adapts to the rate", *TAG)
LIMIT = _gauge("limit_ratio", "livemax", "Share of the numbers up to the limit that are used, 0 to 1", *TAG)
DIRECT = _gauge(
    "direct_processes", "livesum", "Processes that serve the tag in direct mode, because Redis is down", *TAG
)
WAITING = _gauge("callers_waiting", "livesum", "Callers that are waiting for a number", *TAG)
MACHINES = _gauge("machine_numbers_held", "livesum", "Machine numbers that processes hold for the tag", *TAG)
REDIS_SILENT = _gauge("redis_silent", "livemax", "1 while Redis does not answer the draws of at least one tag")
STORE_SILENT = _gauge(
    "store_silent", "livemax", "1 while the store does not answer the reservations of at least one tag"
)
TAGS = _gauge("tags", "livemax", "Number of tags that a process uses, or for which a keeper has loaded a segment")
KEPT = _gauge("kept_tags", "livemax", "Number of tags for which a keeper loads segments, at its last look at all tags")
CONNECTIONS = _gauge("connections", "livesum", "Open client connections", "protocol")
BUILD = _gauge(
    "build_info", "livemax", "Always 1; the labels have the versions of the issuer and of Python", "version", "python"
)

DEFINITIONS: Final[tuple[Definition, ...]] = tuple(each for each in globals().values() if isinstance(each, Definition))
