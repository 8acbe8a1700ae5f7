"""Machine numbers: how a process gets one, for how long, and for which timestamps.

A *tenure* is the use of a machine number by one process, the holder. It has a floor and a ceiling: the holder uses only
timestamps above the floor and up to the ceiling. The ceiling is stored in Redis or in a file before it is used, and
becomes the floor of the next holder. So two tenures of one number never share a timestamp, even if clocks are wrong or
processes are paused.

In a failover to a replica that lags, Redis can lose the ceiling. So after a failover, no machine number is leased until
all old leases are over. During this time, holders can still renew their leases. A holder stops when its lease is over
by its own clock.
"""

from __future__ import annotations

import heapq
import logging
import math
import random
import re
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from issuer.clock import monotonic
from issuer.core.error_mapping import other_store
from issuer.core.steps import Steps, ask, send
from issuer.errors import ConfigurationError, CorruptState, FenceError, IssuerError, NoMachineNumber
from issuer.gateway import machine_scripts
from issuer.gateway.machine_scripts import Claimed, Machine, Released, Renewed
from issuer.times import lasting

T = TypeVar("T")

log = logging.getLogger("issuer.strategies")

#: Duration of a lease in seconds.
LEASE = 30.0

#: How much clocks may differ, in seconds. After a lease has expired, its machine number is not leased again for the
#: same time, because an isolated Redis master accepts writes for up to 10 s (its setting `min-replicas-max-lag`).
MARGIN = 10.0

#: A lease is renewed when a third of it has passed, so two renewals may fail.
RENEW_AFTER = 1 / 3

#: How many free machine numbers are tried before the list of free numbers is read again. A try fails if another
#: process has leased the number in the meantime.
TRIES = 16
#: How many times the list of free machine numbers is read before the claim fails.
ROUNDS = 32


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else monotonic()


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of a process. `wall`: ns since 1970. `elapsed`: seconds, which also count while the machine sleeps."""

    wall: Callable[[], int] = time.time_ns
    elapsed: Callable[[], float] = _elapsed

    def ms(self) -> int:
        return self.wall() // 1_000_000


@dataclass(frozen=True, slots=True)
class Tenure:
    """A machine number of this process. Use timestamps above `floor` and up to `ceiling`, in ms since 1970.

    `until`: time at which the use ends. `due`: time of the next renewal. Both are seconds of `Clock.elapsed`.
    """

    machine: int
    floor: int
    ceiling: int
    until: float = math.inf
    due: float = math.inf


class Machines(ABC):
    """A source of machine numbers. One claim, renewal or release runs at a time."""

    @abstractmethod
    def claim(self) -> Steps[Tenure]:
        """Get a machine number. Raises NoMachineNumber, ConfigurationError, RedisUnavailable."""

    @abstractmethod
    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Extend the use of a machine number. Return None if another process may have the number.

        If the source of machine numbers does not answer, raise its error. The number can then be used until
        `tenure.until`.
        """

    @abstractmethod
    def release(self, tenure: Tenure, used: int) -> Steps[None]:
        """Release the machine number for other processes. `used`: the last timestamp used."""

    def found(self) -> Steps[Tenure | None]:
        """Get the first machine number of a new tag, without a wait for earlier leases. None if the source can't."""
        return None
        yield

    @abstractmethod
    def after_fork(self) -> None:
        """Give up the parent's machine number in a forked child."""


class LeasedMachines(Machines):
    """Machine numbers leased in Redis. A Redis hash has the leases of one tag, or of all tags that share a namespace.

    lua/machine_claim.lua describes the rules.
    """

    def __init__(
        self,
        key: str,
        holder: str,
        numbers: Sequence[int],
        *,
        clock: Clock,
        lease: float = LEASE,
        margin: float = MARGIN,
        own: bool = False,
    ) -> None:
        """Prepare the leasing of one of the machine numbers in the Redis hash `key`. No request is sent.

        `holder`: name of this process, as application.port.ip. `lease`: duration in seconds. `margin`: how much clocks
        may differ, in seconds. `own`: whether only one tag uses the hash.
        """
        self._key = key
        self._holder = holder
        self._numbers = numbers
        self._clock = clock
        self._lease = lease
        self._margin = margin
        self._own = own
        self._token = ""
        #: Machine number of the previous process with this name, if a file contains it (see Copied).
        self._former: int | None = None
        #: Id of the store. It never changes. "" until it is read.
        self._store = ""

    def claim(self) -> Steps[Tenure]:
        """Lease a machine number. If a number that this holder had earlier is free, lease this one."""
        return (yield from self._claim(0))

    def found(self) -> Steps[Tenure | None]:
        """Lease the first machine number of a new tag at once. If the tag shares a namespace, return None."""
        return (yield from self._claim(1)) if self._own else None

    def _claim(self, first: int) -> Steps[Tenure]:
        yield from self._identify()
        soonest = 0.0
        for _ in range(ROUNDS):
            shown = yield from send(machine_scripts.machines(self._key))
            free = _free(self._numbers, shown, self._holder, self._clock.ms() + round(self._margin * 1000))
            # Expired leases are tried only if no number is free.
            numbers = [*self._left(shown), *(free or _silent(self._numbers, shown))]
            tenure, soonest = yield from self._tried(numbers, first)
            if tenure is not None:
                return tenure
            if not free:
                break
        raise NoMachineNumber(
            f"all {len(self._numbers)} machine numbers of {self._key} are in use: use more machine bits, or wait "
            "until a lease expires",
            retry_after=max(0.001, soonest),
        )

    def _tried(self, numbers: Sequence[int], first: int) -> Steps[tuple[Tenure | None, float]]:
        """If all are in use, return None and the seconds to wait. `first`: 1 for the first one of a new tag, else 0."""
        soonest = self._lease + self._margin
        for number in numbers:
            # Use a new token for each try. If no reply comes, nobody uses this machine number until the lease expires.
            token = secrets.token_hex(8)
            sent, ceiling = self._clock.elapsed(), self._clock.ms() + round(self._lease * 1000)
            claimed = yield from send(
                machine_scripts.machine_claim(
                    self._key,
                    number,
                    self._holder,
                    token,
                    ceiling,
                    lease=self._lease,
                    margin=self._margin,
                    first=first,
                    store=self._store,
                )
            )
            if claimed.status == "yours":
                self._token = token
                return self._tenure(number, claimed.floor, ceiling, sent), 0.0
            if claimed.status != "held":
                raise self._refused(claimed)
            soonest = min(soonest, claimed.wait)
        return None, soonest

    def _left(self, shown: Mapping[int, Machine]) -> list[int]:
        """Return the number of the previous process with this name, as a list. [] if Redis shows another holder."""
        known = None if self._former is None else shown.get(self._former)
        return [self._former] if self._former is not None and known and known.holder == self._holder else []

    def _identify(self) -> Steps[None]:
        self._store = self._store or (yield from ask(lambda store, timeout: store.made_id(timeout=timeout)))

    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Renew the lease. This process measures the lease from the moment before it sends the request.

        So it stops using the machine number before the lease ends in Redis.
        """
        return (yield from self._renew(tenure, self._token))

    def _renew(self, tenure: Tenure, token: str) -> Steps[Tenure | None]:
        sent, ceiling = self._clock.elapsed(), self._clock.ms() + round(self._lease * 1000)
        renewed = yield from send(
            machine_scripts.machine_renew(
                self._key, tenure.machine, token, ceiling, lease=self._lease, margin=self._margin
            )
        )
        if renewed.status == "lost":
            return None
        if renewed.status != "yours":
            raise self._refused(renewed)
        floor = max(tenure.floor, renewed.floor)
        return self._tenure(tenure.machine, floor, max(ceiling, tenure.ceiling), sent)

    def release(self, tenure: Tenure, used: int) -> Steps[None]:
        """Give the machine number back. Another process can claim it at once, for timestamps above `used`."""
        released = yield from send(machine_scripts.machine_release(self._key, tenure.machine, self._token, used))
        if released.status not in ("free", "lost"):
            raise self._refused(released)

    def after_fork(self) -> None:
        """Drop the parent's token."""
        self._token = ""

    def _tenure(self, number: int, floor: int, ceiling: int, sent: float) -> Tenure:
        return Tenure(number, floor, ceiling, sent + self._lease, sent + self._lease * RENEW_AFTER)

    def _refused(self, reply: Claimed | Renewed | Released) -> IssuerError:
        if isinstance(reply, Claimed) and reply.status == "settling":
            return NoMachineNumber(
                f"{self._key}: Redis was replaced or emptied, so the machine numbers in use are unknown; none is "
                f"leased for another {lasting(reply.wait)}, until all earlier leases have expired",
                retry_after=max(0.001, reply.wait),
            )
        if not isinstance(reply, Released) and reply.status == "ahead":
            return NoMachineNumber(
                f"this machine's clock is {lasting(self._margin + reply.wait)} ahead of Redis's, more than the "
                f"{self._margin:g} s that are allowed: correct it",
                retry_after=max(0.001, reply.wait),
            )
        if isinstance(reply, Claimed) and reply.status == "otherstore":
            return other_store(self._key, reply.store, self._store)
        if reply.status == "notmaster":
            return FenceError(
                "this Redis is not a master, so its machine numbers cannot be trusted: configure the address of the "
                "master"
            )
        return CorruptState(
            f"Redis key {self._key} has fields or values that the issuer never writes: look at it with HGETALL"
        )


def mixed(numbers: Sequence[int]) -> Iterator[int]:
    """Yield each number once, in random order. No list is made, because there may be millions of numbers.

    The order is random so that processes that start at the same time do not all try the same number.
    """
    size = len(numbers)
    at, step = random.randrange(size), random.randint(1, size)  # noqa: S311 - not secret
    while math.gcd(step, size) != 1:
        step = step % size + 1
    for _ in range(size):
        yield numbers[at]
        at = (at + step) % size


def _free(numbers: Sequence[int], shown: Mapping[int, Machine], holder: str, soon: int) -> list[int]:
    """Return at most TRIES numbers that no process holds. Numbers that this holder had earlier come first.

    Numbers that were used with timestamps above `soon` (ms since 1970) come last, because a process that leases such a
    number must wait.
    """
    ours = [number for number, known in shown.items() if known.holder == holder and not known.held]
    ours = [number for number in mixed(ours) if number in numbers] if ours else []
    others = (
        number
        for number in mixed(numbers)
        if (known := shown.get(number)) is None or (not known.held and known.holder != holder and known.last <= soon)
    )
    late = (
        number
        for number, known in shown.items()
        if number in numbers and not known.held and known.holder != holder and known.last > soon
    )
    return list(islice(chain(ours, others, late), TRIES))


def _silent(numbers: Sequence[int], shown: Mapping[int, Machine]) -> list[int]:
    """Return at most TRIES numbers: those with the leases that end first, in the order in which they end."""
    held = [number for number in shown if number in numbers]
    return heapq.nsmallest(TRIES, held, key=lambda number: shown[number].lapses)


def ordinal(hostname: str | None = None) -> int:
    """Return the number at the end of the host name: 3 for pod orders-3 of a StatefulSet. Raises ConfigurationError."""
    name = hostname if hostname is not None else socket.gethostname()
    found = re.search(r"-(\d{1,9})$", name.partition(".")[0])
    if found is None:
        raise ConfigurationError(
            f"machine 'ordinal': the host name {name!r} does not end with a number, as orders-3 does"
        )
    return int(found[1])


def blocking(work: Callable[[], T]) -> Steps[T]:
    """Run a function that may block: directly, or in a thread under asyncio."""
    return (yield from ask(lambda _store, _seconds: work()))
