"""Machine numbers: which one is ours, for how long, and up to which timestamp.

A *tenure* has a floor and a ceiling: its holder makes numbers only of timestamps above the one and up to the other.
The ceiling is written down, in Redis or in a file, before it is used, and the next holder of the machine number gets it
as the floor. So two tenures of one number never share a timestamp, however the clocks go and processes are paused.

That holds as long as what was written down isn't forgotten. Redis forgets at a failover to a lagging replica: so after
each new reign no claim is granted until every lease of the old one is over, and a holder stops when its lease is over,
on its own clock. Renewals go on meanwhile.
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

from issuer.core.error_mapping import other_store
from issuer.core.steps import Steps, ask, send
from issuer.errors import ConfigurationError, CorruptState, FenceError, IssuerError, NoMachineNumber
from issuer.gateway import machine_scripts
from issuer.gateway.machine_scripts import Claimed, Machine, Released, Renewed
from issuer.times import lasting

T = TypeVar("T")

log = logging.getLogger("issuer.strategies")

#: Seconds that a machine number is leased for.
LEASE = 30.0

#: Seconds by which clocks may differ, and that a lapsed number is left alone. A master that is cut off goes on for 10,
#: by Redis's `min-replicas-max-lag`.
MARGIN = 10.0

#: A lease is renewed when a third of it has passed: two renewals may fail.
RENEW_AFTER = 1 / 3

#: How many numbers are tried before the free ones are looked up again, and how often that is done: each time others
#: were quicker.
TRIES = 16
ROUNDS = 32


def _elapsed() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks: `wall` in ns since 1970, `elapsed` in seconds that goes on while the machine sleeps."""

    wall: Callable[[], int] = time.time_ns
    elapsed: Callable[[], float] = _elapsed

    def ms(self) -> int:
        """Return the wall clock, in ms since 1970."""
        return self.wall() // 1_000_000


@dataclass(frozen=True, slots=True)
class Tenure:
    """A machine number that is ours. Make numbers of timestamps above `floor`, up to `ceiling`, in ms since 1970.

    `until`: when it is over, `due`: when to renew it, both on the clock of elapsed seconds.
    """

    machine: int
    floor: int
    ceiling: int
    until: float = math.inf
    due: float = math.inf


class Machines(ABC):
    """The source of machine numbers. One claim, renewal or release at a time."""

    @abstractmethod
    def claim(self) -> Steps[Tenure]:
        """Get a number. Raises NoMachineNumber, ConfigurationError, RedisUnavailable."""

    @abstractmethod
    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Return it with a higher ceiling; None if it is ours no more. Raises if that can't be found out now."""

    @abstractmethod
    def release(self, tenure: Tenure, used: int) -> Steps[None]:
        """Give it back. `used`: the last timestamp that numbers were made of."""

    def found(self) -> Steps[Tenure | None]:
        """Get the first number there ever was, without waiting for leases that can't be; None if there's no wait."""
        return None
        yield

    @abstractmethod
    def after_fork(self) -> None:
        """In a forked child: forget what is the parent's."""


class LeasedMachines(Machines):
    """Leased in Redis: one hash per namespace, see lua/machine_claim.lua."""

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
        """`key`: of the hash. `numbers`: those to choose from. `own`: no other tag uses the hash."""
        self._key = key
        self._holder = holder
        self._numbers = numbers
        self._clock = clock
        self._lease = lease
        self._margin = margin
        self._own = own
        self._token = ""
        #: The number of the process before this one, if that is known otherwise than by Redis.
        self._former: int | None = None
        #: The store's id, once it is known: it never changes.
        self._store = ""

    def claim(self) -> Steps[Tenure]:
        """Lease a number: the one that this holder had last if it is free, else any."""
        return (yield from self._claim(0))

    def found(self) -> Steps[Tenure | None]:
        """Lease the first number of a tag that shares none with others, and can't have been forgotten."""
        return (yield from self._claim(1)) if self._own else None

    def _claim(self, first: int) -> Steps[Tenure]:
        yield from self._identify()
        soonest = 0.0
        for _ in range(ROUNDS):
            shown = yield from send(machine_scripts.machines(self._key))
            free = _free(self._numbers, shown, self._holder, self._clock.ms() + round(self._margin * 1000))
            # Only where none is free: those whose holders are silent may have lapsed.
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
        """Lease one of these. Returns None if all are held, and for how many seconds at least they are."""
        soonest = self._lease + self._margin
        for number in numbers:
            # What this process can't account for: a reply that was lost leaves the number unused until it lapses.
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
        """Return the number that the process before has left to lapse, if it is still shown as this holder's."""
        known = None if self._former is None else shown.get(self._former)
        return [self._former] if self._former is not None and known and known.holder == self._holder else []

    def _identify(self) -> Steps[None]:
        self._store = self._store or (yield from ask(lambda store, timeout: store.made_id(timeout=timeout)))

    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Renew the lease. It counts from before the request was sent, so that it ends here before it ends there."""
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
        """Give it back: it can be claimed at once, from above `used`."""
        released = yield from send(machine_scripts.machine_release(self._key, tenure.machine, self._token, used))
        if released.status not in ("free", "lost"):
            raise self._refused(released)

    def after_fork(self) -> None:
        """Forget the parent's token."""
        self._token = ""

    def _tenure(self, number: int, floor: int, ceiling: int, sent: float) -> Tenure:
        return Tenure(number, floor, ceiling, sent + self._lease, sent + self._lease * RENEW_AFTER)

    def _refused(self, reply: Claimed | Renewed | Released) -> IssuerError:
        """Return the error for a reply that grants nothing."""
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
    """Yield each once, in an order that is another one each time, and make no list of them: there may be millions.

    Processes that start at once don't all try the same one then.
    """
    size = len(numbers)
    at, step = random.randrange(size), random.randint(1, size)  # noqa: S311 - nothing secret
    while math.gcd(step, size) != 1:
        step = step % size + 1
    for _ in range(size):
        yield numbers[at]
        at = (at + step) % size


def _free(numbers: Sequence[int], shown: Mapping[int, Machine], holder: str, soon: int) -> list[int]:
    """Return TRIES numbers that no process holds, or all: first those that this holder had before, then others.

    `soon`: numbers of others that were used of time beyond that come last, as their next holder has to wait until it is
    over.
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
    """Return the TRIES numbers whose leases end first, or ended long ago."""
    held = [number for number in shown if number in numbers]
    return heapq.nsmallest(TRIES, held, key=lambda number: shown[number].lapses)


def ordinal(hostname: str | None = None) -> int:
    """Return the number at the end of the host's name, as a StatefulSet's: orders-3. Raises ConfigurationError."""
    name = hostname if hostname is not None else socket.gethostname()
    found = re.search(r"-(\d{1,9})$", name.partition(".")[0])
    if found is None:
        raise ConfigurationError(
            f"machine 'ordinal': the host name {name!r} does not end with a number, as orders-3 does"
        )
    return int(found[1])


def blocking(work: Callable[[], T]) -> Steps[T]:
    """Do something that may block: in place, or in a thread under asyncio."""
    return (yield from ask(lambda _store, _seconds: work()))
