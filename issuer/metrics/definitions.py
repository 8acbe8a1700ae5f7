"""Each metric: its name, kind, labels, and how the values of several processes become one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

#: How gauges of several processes are put together: added up, the highest, or the one that was set last. The values of
#: a process that has ended count no more.
Joined = Literal["livesum", "livemax", "livemostrecent"]

#: In seconds: a store near by takes 1 to 5 ms, and a call of it ends after `store_timeout`, 3 s unless it is set.
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

TAG: Final = ("tag",)


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric. `name`: without the suffix `_total` that a counter is shown with. `joined`: of a gauge."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = TAG
    joined: Joined | None = None

    @property
    def shown(self) -> str:
        """Its name in rules, dashboards and documents."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _counter(name: str, help: str, *labels: str) -> Definition:
    return Definition(f"issuer_{name}", "counter", help, (*TAG, *labels))


def _gauge(name: str, joined: Joined, help: str, *labels: str) -> Definition:
    return Definition(f"issuer_{name}", "gauge", help, labels, joined)


ISSUED = _counter("issued", "Numbers given to callers, out of memory as well")
DRAWS = _counter("draws", "Draws from Redis that brought numbers to callers")
ELECTIONS = _counter("elections_won", "Draws that elected this process to load the next segment")
RESERVATIONS = _counter("reservations", "Reservations asked of the store, by reason and result", "reason", "result")
RESERVATION = Definition(
    "issuer_reservation_seconds", "histogram", "Time that the store took for a reservation", ("reason", "result")
)
SEGMENTS = _counter("segments_loaded", "Segments loaded into Redis")
LATE = _counter("extensions_late", "Times that all segments were used up before the next one was there")
NEAR = _counter("limits_near", "Times that a tag's numbers were found to be nearly used up")
FENCE = _counter("fence_trips", "Losses of a tag's numbers in Redis, by cause", "cause")
LOST = _counter("numbers_lost", "Numbers that nobody will get since Redis lost them, at most")
NOT_GIVEN_BACK = _counter("give_backs_failed", "Times that unused numbers could not be given back, and stay a gap")
WENT_DIRECT = _counter("direct_begun", "Times that a process began to serve a tag without Redis")
REJOINED = _counter("direct_ended", "Times that a process went back to Redis with a tag")
LEASES = _counter("leases_drawn", "Leases drawn from Redis")
LEASES_DROPPED = _counter("leases_dropped", "Times that leases were dropped, as the tag's hash was armed again")
REDIS_SILENCES = _counter("redis_silences", "Outages of Redis that draws ran into")
REDIS_SECONDS = _counter("redis_silent_seconds", "Seconds that those outages lasted, once they are over")
STORE_SILENCES = _counter("store_silences", "Outages of the store that fetches ran into")
STORE_BACK = _counter("store_returns", "Times that the store answered again after one")
WAITS = _counter("waits", "Times that callers waited for a second, or in vain")
WAIT_SECONDS = _counter("wait_seconds", "Seconds that those callers waited, once they were served")
REFUSALS = _counter("refusals", "Calls that got an error in place of a number, by its code", "code")
FAILED = _counter("background_failures", "Work in the background that came to nothing, by kind", "work")

REQUESTS = Definition(
    "issuer_http_requests", "counter", "Requests over HTTP, by the token's name", ("route", "status", "token")
)
REQUEST_SECONDS = Definition("issuer_http_request_seconds", "counter", "Seconds that those requests took", ("route",))
REQUESTS_WITHIN = Definition(
    "issuer_http_requests_within", "counter", "Those that took at most `le` seconds", ("route", "le")
)
COMMANDS = Definition("issuer_resp_commands", "counter", "Commands over Redis's protocol", ("command",))
AUTH_FAILURES = Definition(
    "issuer_authentication_failures", "counter", "Requests that had no token, or none that is known", ("protocol",)
)

REMAINING = _gauge("remaining_numbers", "livemostrecent", "Numbers left in Redis, in both segments", *TAG)
HELD = _gauge("held_numbers", "livesum", "Numbers held in the memory of processes", *TAG)
RUNWAY = _gauge("runway_seconds", "livemostrecent", "How long those left last at the rate of the last minute", *TAG)
LIMIT = _gauge("limit_ratio", "livemax", "Share of the numbers up to the limit that are used", *TAG)
DIRECT = _gauge("direct_processes", "livesum", "Processes that serve the tag without Redis, as that is away", *TAG)
WAITING = _gauge("callers_waiting", "livesum", "Callers that wait for a number now", *TAG)
MACHINES = _gauge("machine_numbers_held", "livesum", "Machine numbers that processes hold for the tag", *TAG)
REDIS_SILENT = _gauge("redis_silent", "livemax", "1 while Redis gives no answer to the draws of a tag")
STORE_SILENT = _gauge("store_silent", "livemax", "1 while the store gives no answer to the fetches of a tag")
TAGS = _gauge("tags", "livemax", "Tags that a process knows")
KEPT = _gauge("kept_tags", "livemax", "Tags that a keeper extends, drawn from or not")
CONNECTIONS = _gauge("connections", "livesum", "Connections of clients", "protocol")
BUILD = _gauge("build_info", "livemax", "1, with the versions of the issuer and of Python", "version", "python")

DEFINITIONS: Final[tuple[Definition, ...]] = tuple(each for each in globals().values() if isinstance(each, Definition))
