"""Machine numbers from the store. Each machine number has its own tag, and processes reserve timestamps from it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress

from issuer.core.parts import TIMESTAMPS, is_machine
from issuer.core.scheme_record import MACHINE, PART_OF
from issuer.core.steps import Steps, ask
from issuer.core.supply import direct
from issuer.errors import ConfigurationError, NoMachineNumber
from issuer.gateway.keys import part_tag
from issuer.strategies.snowflake.machines import MARGIN, RENEW_AFTER, Clock, Machines, Tenure, mixed
from issuer.times import lasting
from issuer_persistence.contract import Store
from issuer_persistence.errors import TagPresent
from issuer_persistence.ledger import Reservation
from issuer_persistence.records import Tag, TagChanges, TagSettings

#: How much time is reserved at once, in seconds. This time is longer than a lease in Redis, because each renewal adds
#: an entry to the store's ledger: 432 a day for each process. After a kill, the machine number stays blocked for this
#: time.
LEASE = 600.0

_GIVEN_BACK = "; given back by "

#: How many ledger entries are read to find the entry with a timestamp. Entries without numbers can come before this
#: entry, because all their numbers were returned.
LOOKED_AT = 50

#: A machine number can be claimed if its last timestamp is at most this many ms in the future. The process waits for
#: this time: clocks of hosts always differ a little.
NEAR = 200


class Stored(Machines):
    """Reserves timestamps of a machine number in the store, like the numbers of a tag: no process gets them twice.

    So no clock needs to be trusted. Each machine number has a tag. The tag's `max` is the last timestamp that may have
    been used, in ms since 1970. The next holder starts above this timestamp.
    """

    def __init__(
        self,
        namespace: str,
        holder: str,
        numbers: Sequence[int],
        *,
        clock: Clock,
        lease: float = LEASE,
        application: str = "",
    ) -> None:
        """Prepare the claim of one of these machine numbers. No request is sent.

        `namespace`: first part of the names of their tags, such as `namespace#machine-7`. `holder`: name of this
        process, as application.port.ip. `lease`: how much time is reserved at once, in seconds. `application`: for the
        ledger.
        """
        self._namespace = namespace
        self._holder = holder
        self._application = application
        self._numbers = numbers
        self._clock = clock
        self._lease = round(lease * 1000)
        #: Reservations of timestamps that this process can use, without gaps between them, oldest first.
        self._held: list[Reservation] = []

    def claim(self) -> Steps[Tenure]:
        """Claim a machine number that has no reserved time in the future. This holder's usual number is tried first."""
        yield from self._check_clock()
        soonest = self._lease
        for number in _candidates(self._numbers, self._holder):
            sent = self._clock.elapsed()
            record = yield from self._record(number)
            ahead = record.max - self._clock.ms()
            # `ours`: the previous process with this name has returned this number. If its last timestamp is still in
            # the future, this clock is behind. Then wait, because another number would hide the problem.
            ours = record.description == self._left(record.max)
            if ahead <= NEAR or ours:
                now = self._clock.ms()
                # Skip the time in which no process had the machine number.
                yield from _configure(self._namespace, number, TagChanges(raise_to=now))
                # If two processes reserve time for this number, the second process gets the time after that of the
                # first.
                held = yield from self._reserved(number, now, self._lease)
                ahead = held.low - self._clock.ms()
                if ahead <= NEAR or (ours and held.low == record.max):
                    self._held = [held]
                    return self._tenure(number, held.low, held.high, sent)
                yield from _given_back([held], held.low)
            soonest = min(soonest, ahead)
        raise NoMachineNumber(
            f"all {len(self._numbers)} machine numbers of {self._namespace} are in use: use more machine bits, or "
            "wait until the reserved time of one has passed",
            retry_after=max(0.001, soonest / 1000),
        )

    def renew(self, tenure: Tenure) -> Steps[Tenure | None]:
        """Reserve more time. Return None if the machine number was released here, or another process has it now."""
        yield from self._check_clock()
        sent, ceiling = self._clock.elapsed(), self._clock.ms() + self._lease
        if ceiling <= tenure.ceiling:  # the clock was set back
            return self._tenure(tenure.machine, tenure.floor, tenure.ceiling, sent)
        if not self._held:  # `release` has lowered the store's `max`: `_reserved` would raise StoreBehind
            return None
        held = yield from self._reserved(tenure.machine, tenure.ceiling, ceiling - tenure.ceiling)
        if held.low != tenure.ceiling:
            yield from _given_back([held], held.low)
            return None
        now = self._clock.ms()
        self._held = [*(each for each in self._held if each.high > now), held]
        return self._tenure(tenure.machine, tenure.floor, held.high, sent)

    def release(self, tenure: Tenure, used: int) -> Steps[None]:
        """Return the unused time to the store, and record this process as the last holder of the machine number."""
        held, self._held = [each for each in self._held if each.high >= used], []
        if not held:
            return
        last = max(used, held[0].low)
        if (yield from _given_back(held, last)):
            yield from _configure(self._namespace, tenure.machine, TagChanges(description=self._left(last)))

    def after_fork(self) -> None:
        """Forget the reservations in a forked child: the parent uses and returns them."""
        self._held = []

    def _record(self, number: int) -> Steps[Tag]:
        """Return the record of a machine number. The first use creates the record."""
        name = _tag(self._namespace, number)
        settings = TagSettings(
            step=1, order="trend", description=TIMESTAMPS, scheme={PART_OF: self._namespace, MACHINE: number}
        )

        def found(store: Store, timeout: float) -> Tag:
            record = store.get(name, timeout=timeout)
            if record is None or record.deleted:
                with suppress(TagPresent):
                    return store.create(name, settings, timeout=timeout)
                record = store.get(name, timeout=timeout)
            assert record is not None  # noqa: S101 - a tag is never removed
            return record

        record = yield from ask(found)
        if not is_machine(record):
            # A user has created this tag for other numbers. Reserving time would consume these numbers.
            raise ConfigurationError(
                f"tag {name!r} is needed for a machine number, but it exists already and issues other numbers: use "
                "another namespace for the snowflake tag",
                tag=name,
            )
        return record

    def _left(self, last: int) -> str:
        """Return the description by which the next process with this name recognizes its machine number."""
        return f"{TIMESTAMPS}{_GIVEN_BACK}{self._holder} at {last}"

    def _reserved(self, number: int, above: int, n: int) -> Steps[Reservation]:
        """Reserve the n ms that follow the time already reserved for a machine number.

        `above`: lowest value that the store's `max` can have, in ms since 1970. If `max` is lower, the store has lost
        changes, and StoreBehind is raised.
        """
        return (
            yield from direct.reserve(
                _tag(self._namespace, number), seen=above, n=n, reason="machine", application=self._application
            )
        )

    def _check_clock(self) -> Steps[None]:
        """Raise NoMachineNumber if this clock is more than 10 s ahead of the store's clock.

        If time were reserved by such a clock, nobody could use the machine number until this time has passed.
        """
        theirs = (yield from ask(lambda store, timeout: store.examine(timeout=timeout))).time
        ahead = 0.0 if theirs is None else (self._clock.ms() - theirs) / 1000
        if ahead > MARGIN:
            raise NoMachineNumber(
                f"this machine's clock is {lasting(ahead)} ahead of the store's, more than the {MARGIN:g} s that are "
                "allowed: correct it",
                retry_after=ahead - MARGIN,
            )

    def _tenure(self, number: int, floor: int, ceiling: int, sent: float) -> Tenure:
        return Tenure(number, floor, ceiling, due=sent + self._lease * RENEW_AFTER / 1000)


def holder_of(record: Tag) -> str:
    """Return the process that returned the machine number last. "" if the machine number is in use again."""
    named, _, last = record.description.partition(_GIVEN_BACK)[2].rpartition(" at ")
    return named if last == str(record.max) else ""


def forget_holder(namespace: str, number: int) -> Steps[None]:
    """Delete the name of the last holder. So the next process with this name can claim another machine number."""
    yield from _configure(namespace, number, TagChanges(description=TIMESTAMPS))


def holder(namespace: str, number: int, timestamp: int) -> Steps[str | None]:
    """Return the holder of the machine number at a time (ms since 1970). None if no ledger entry contains the time."""
    page = yield from ask(
        lambda store, timeout: store.segments(
            _tag(namespace, number), beyond=(timestamp, -1, ""), upward=True, count=LOOKED_AT, timeout=timeout
        )
    )
    return next((f"{each.host}, pid {each.pid}" for each in page.entries if each.holds(timestamp)), None)


def _tag(namespace: str, number: int) -> str:
    return part_tag(namespace, f"machine-{number}")


def _configure(namespace: str, number: int, changes: TagChanges) -> Steps[None]:
    yield from ask(lambda store, timeout: store.configure(_tag(namespace, number), changes, timeout=timeout))


def _given_back(held: Sequence[Reservation], used: int) -> Steps[bool]:
    return (yield from ask(lambda store, timeout: store.hand_back(held, used, timeout=timeout)))


def _candidates(numbers: Sequence[int], holder: str) -> Iterator[int]:
    """Yield all numbers: first this holder's usual number, which depends on its name, then the others at random."""
    usual = numbers[zlib.crc32(holder.encode()) % len(numbers)]
    yield usual
    yield from (number for number in mixed(numbers) if number != usual)
