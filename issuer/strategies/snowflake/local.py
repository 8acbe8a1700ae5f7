"""Machine numbers with a file on the host: numbers that an operator has set, and copies of leases in Redis."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from issuer.core.steps import Steps
from issuer.errors import ConfigurationError, Unavailable
from issuer.strategies.snowflake.files import LockLost, Properties, whole
from issuer.strategies.snowflake.layout import Layout
from issuer.strategies.snowflake.machines import LEASE, MARGIN, Clock, LeasedMachines, Machines, Tenure, blocking

log = logging.getLogger("issuer.strategies")

#: A file contains a ceiling: the highest timestamp that the process may use. The ceiling is up to this many ms in the
#: future. If the process is killed, the next process waits for at most this time.
AHEAD = 3000

#: The process writes a higher ceiling to the file this many seconds after it wrote the last one.
WRITE_AFTER = 1.0


class FixedMachine(Machines):
    """A machine number that an operator has set for this process. A file stores the last usable timestamp.

    A lock on the file keeps out other processes of this host. The same number on another host is not detected.
    """

    def __init__(self, machine: int, path: Path, *, clock: Clock) -> None:
        """`machine`: the machine number. `path`: file that stores its last usable timestamp. It is not opened yet."""
        self._machine = machine
        self._file = Properties(path)
        self._clock = clock

    def claim(self) -> Steps[Tenure]:
        """Lock the file, and take the machine number.

        Raises ConfigurationError if another process of this host, or the parent of this forked child, has the lock.
        """
        return (yield from blocking(self._claimed))

    def _claimed(self) -> Tenure:
        self._file.lock()
        try:
            last = whole(self._file.read(), "last", self._file.path) or 0
            # Use only timestamps after the current time. If the file was lost, an earlier process may have used this
            # millisecond.
            floor = max(last, self._clock.ms())
            return self._written(floor, floor)
        except BaseException:
            self._file.unlock()
            raise

    def _written(self, floor: int, before: int) -> Tenure:
        # `before` is the previous ceiling. Numbers with timestamps up to it may exist, so never write a lower ceiling.
        ceiling = max(before, self._clock.ms() + AHEAD)
        self._file.write({"machineId": self._machine, "last": ceiling})
        return Tenure(self._machine, floor, ceiling, due=self._clock.elapsed() + WRITE_AFTER)

    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Write a higher ceiling (the last usable timestamp) to the file, then use it.

        Return None if the lock was lost: then another process may have the machine number.
        """
        return (yield from blocking(lambda: self._renewed(tenure)))

    def _renewed(self, tenure: Tenure) -> Tenure | None:
        try:
            return self._written(tenure.floor, tenure.ceiling)
        except LockLost as error:
            log.warning("%s", error)
            self._file.unlock()
            return None

    def release(self, tenure: Tenure, used: int) -> Steps[None]:  # noqa: ARG002 - there is one machine number only
        yield from blocking(lambda: self._file.close({"machineId": self._machine, "last": used}))

    def after_fork(self) -> None:
        self._file.forget()


class Copied(LeasedMachines):
    """A machine number leased in Redis, with a copy in a file, so that a restarted process can keep it.

    While Redis is down, a restarted process uses the copy only as long as no other process can have leased the number:
    for the duration of a lease after the last renewal was sent. This is measured with a clock that nobody can set.
    The clock starts again at each boot, so the copy is valid only until the next boot.

    An orderly stop does not return the lease. The next process of this name takes the lease over, or the lease expires.
    """

    def __init__(
        self,
        key: str,
        holder: str,
        numbers: Sequence[int],
        path: Path,
        *,
        layout: Layout,
        clock: Clock,
        lease: float = LEASE,
        margin: float = MARGIN,
        own: bool = False,
    ) -> None:
        """Do as LeasedMachines. `path`: file for the copy of the lease. `layout`: for worker and rack in the file."""
        super().__init__(key, holder, numbers, clock=clock, lease=lease, margin=margin, own=own)
        self._file = Properties(path)
        self._layout = layout
        self._leased = Tenure(0, 0, 0)
        self._boot = boot_id()
        self._copies = True

    def claim(self) -> Steps[Tenure]:
        """Continue with the machine number in the file if that is safe. Otherwise lease a machine number."""
        return (yield from self._either(super().claim()))

    def found(self) -> Steps[Tenure | None]:
        """Lease the first machine number of a new tag. If the tag shares a namespace, return None."""
        return (yield from self._either(super()._claim(1))) if self._own else None

    def _either(self, claim: Steps[Tenure]) -> Steps[Tenure]:
        try:
            yield from blocking(self._file.lock)
        except ConfigurationError as error:
            # Another process of the same name, or the parent of this forked child, has locked the file. So this process
            # leases another machine number, without a file.
            log.info("leasing a machine number without a local copy of its last timestamp: %s", error)
            self._copies = False
            return (yield from claim)
        self._copies = True
        try:
            yield from self._identify()
            known = yield from blocking(self._file.read)
            found = yield from self._resumed(known)
            self._leased = found or (yield from claim)
            return (yield from blocking(lambda: self._written(self._leased.floor, self._leased.floor)))
        except BaseException:
            self._file.unlock()
            raise

    def _resumed(self, known: Mapping[str, str]) -> Steps[Tenure | None]:
        """Return None if this process must not use the number in the file. `known`: properties in the file."""
        path = self._file.path
        machine, last, ceiling = (whole(known, name, path) for name in ("machineId", "last", "ceiling"))
        renewed, lease = whole(known, "renewed", path), whole(known, "lease", path)
        token = known.get("token", "")
        self._former = machine if machine in self._numbers else None
        # Reject a file from another machine, from a clone, from another store, or in a copied directory: a process with
        # the original directory may use the same number (measured: 103 300 repeats in 259 950 numbers).
        if not self._boot or known.get("boot") != self._boot or known.get("store") != self._store:
            return None
        if known.get("lock") != self._file.identity:
            return None
        if machine is None or machine not in self._numbers or last is None or not token:
            return None
        before = Tenure(machine, last, last)
        try:
            resumed = yield from self._renew(before, token)
        except Unavailable:
            if renewed is None or lease is None or ceiling is None:
                raise
            until = (renewed + lease) / 1000
            if not renewed / 1000 <= self._clock.elapsed() < until:
                raise
            log.warning(
                "%s: Redis does not answer; continuing with machine number %d, %s", path, machine, "as its lease lasts"
            )
            resumed = Tenure(machine, last, max(last, ceiling), until, self._clock.elapsed())
        if resumed is not None:
            self._token = token
        return resumed

    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Renew the lease if it is due, and write a higher ceiling (the last usable timestamp) to the file."""
        if not self._copies:
            return (yield from super().renew(tenure))
        if self._clock.elapsed() >= self._leased.due or self._clock.ms() >= self._leased.ceiling:
            try:
                renewed = yield from super().renew(self._leased)
            except Unavailable:
                if self._clock.elapsed() >= self._leased.until:
                    raise
                log.debug("%s was not renewed", self._file.path, exc_info=True)
            else:
                if renewed is None:
                    self._file.unlock()
                    return None
                self._leased = renewed
        floor = max(tenure.floor, self._leased.floor)
        try:
            return (yield from blocking(lambda: self._written(floor, max(floor, tenure.ceiling))))
        except LockLost as error:
            # The lock was lost, so another process may have continued the lease with the file's token.
            log.warning("%s", error)
            self._file.unlock()
            return None

    def _written(self, floor: int, before: int) -> Tenure:
        leased = self._leased
        # `before` is the previous ceiling, or the floor of a new tenure. Numbers with timestamps up to it may exist, so
        # never write a lower ceiling. If the clock is far behind, `before` may be above the last timestamp of the
        # lease. Then no number is issued.
        ceiling = max(before, min(leased.ceiling, self._clock.ms() + AHEAD))
        self._file.write(self._properties(ceiling))
        return Tenure(leased.machine, floor, ceiling, leased.until, self._clock.elapsed() + WRITE_AFTER)

    def _properties(self, last: int) -> Mapping[str, object]:
        leased = self._leased
        properties: dict[str, object] = {"machineId": leased.machine}
        if self._layout.rack_bits:
            properties["workerId"] = leased.machine >> self._layout.rack_bits
            properties["rackId"] = leased.machine & ((1 << self._layout.rack_bits) - 1)
        # The time at which the last renewal was sent, in ms. It is rounded down, so that the lease does not seem longer
        # than it is.
        sent = int((leased.until - self._lease) * 1000)
        properties |= {"last": last, "token": self._token, "boot": self._boot, "store": self._store}
        properties["lock"] = self._file.identity
        return properties | {"ceiling": leased.ceiling, "renewed": sent, "lease": round(self._lease * 1000)}

    def release(self, tenure: Tenure, used: int) -> Steps[None]:
        """Record the last timestamp used. Do not return the lease: the next process of this name can take it over.

        If this process returned the lease, another process could get the machine number at once. While Redis is down,
        the next process of this name could not notice this, and would use the same number.
        """
        if self._copies:
            yield from blocking(lambda: self._file.close(self._properties(used)))
        else:
            yield from super().release(tenure, used)

    def after_fork(self) -> None:
        super().after_fork()
        self._file.forget()


def boot_id() -> str:
    """Return an id that changes at each boot of this machine. If it is unknown, return "": then no file is valid."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
