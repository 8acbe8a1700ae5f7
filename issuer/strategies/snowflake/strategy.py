"""The strategy snowflake: numbers that consist of time, machine number and sequence. They need no counter."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from urllib.parse import quote

from issuer.clock import Deadline
from issuer.core.steps import SingleFlight, Steps, send, sleep
from issuer.errors import (
    ClockBehind,
    ConfigurationError,
    InvalidArgument,
    IssuerError,
    NoMachineNumber,
    Unavailable,
    brief,
)
from issuer.gateway.keys import check_tag
from issuer.gateway.machine_scripts import machines, machines_key
from issuer.instance import Instance
from issuer.strategies.contract import Context, Strategy
from issuer.strategies.options import Scalar, check_names, number, text, whole
from issuer.strategies.snowflake import layout as layout_
from issuer.strategies.snowflake import stored
from issuer.strategies.snowflake.layout import Layout
from issuer.strategies.snowflake.local import AHEAD, Copied, FixedMachine
from issuer.strategies.snowflake.machines import LEASE, Clock, LeasedMachines, Machines, Tenure, ordinal
from issuer.strategies.snowflake.ticks import OVER, Ticks
from issuer.times import lasting

log = logging.getLogger("issuer.strategies")

#: The options of a snowflake tag: those of the layout, and
#: - machine: source of the machine number: "redis", "store", "file", "ordinal" or "fixed"
#: - namespace: tags with the same namespace share machine numbers. Default: the tag itself
#: - lease: duration of a machine number's lease, 5..2592000 seconds. `lease` and `namespace` together need
#:   machine=store
#: - max_wait: how long a call waits for a clock that went back, 0..60000 ms. If the clock is further behind, the call
#:   fails
OPTIONS = (*layout_.OPTIONS, "machine", "namespace", "lease", "max_wait")

SOURCES = ("redis", "store", "file", "ordinal", "fixed")

MAX_WAIT = 1000

#: Maximum length of a namespace's part in a file name.
LONGEST_NAME = 120

_MS = 1_000_000


class Snowflake(Strategy):
    """Strategy that makes numbers from time, machine number and sequence.

    The numbers are unique if all processes take their machine numbers from the same source. They increase within a
    process. While a process is idle, the scheduler renews the lease of its machine number. If there is no scheduler,
    the next caller takes a machine number again after the lease has expired.
    """

    def __init__(self, context: Context, *, clock: Clock | None = None, machines: Machines | None = None) -> None:
        """Read the options of the tag. Raises ConfigurationError. `machines`: None means those that they select."""
        super().__init__(context)
        self._clock = clock or Clock()
        self.layout = _checked(context.options, self._clock)
        self._max_wait = whole(context.options, "max_wait", MAX_WAIT, 0, 60_000) * _MS
        self._machines = machines or self._source()
        self._ticks = Ticks(self.layout, self._clock)
        self._once = partial(SingleFlight(context.flight).do, tag=context.tag, what="a machine number")
        self._closed = False

    @classmethod
    def check(cls, options: Mapping[str, Scalar]) -> None:
        """Reject unknown options, invalid values, and a layout that cannot represent the current time."""
        _checked(options, Clock())

    @classmethod
    def settled(cls, options: Mapping[str, Scalar], instance: Instance, *, redis: bool) -> Mapping[str, Scalar]:
        """Add the option `machine`, so that all processes take machine numbers from the same source.

        With two sources, two processes could get the same machine number.
        """
        shared = "redis" if redis else "store"
        return {"machine": shared if instance.machine is None else "fixed", **options}

    @classmethod
    def decode(cls, options: Mapping[str, Scalar], value: int) -> Mapping[str, int]:
        """Return the parts of a number: timestamp in ms since 1970, machine, worker, rack, sequence."""
        return asdict(Layout.of(options).decompose(value))

    @classmethod
    def holder(cls, options: Mapping[str, Scalar], value: int, tag: str, prefix: str) -> Steps[str | None]:
        """Return the last known holder of the machine number that `value` contains.

        With the option machine=store, return who held it at the time that `value` contains.
        """
        parts = Layout.of(options).decompose(value)
        kind, shared = text(options, "machine", "redis"), shared_namespace(options)
        if kind == "store":
            return (yield from stored.holder(shared or tag, parts.machine, parts.timestamp))
        if kind not in ("redis", "file"):
            return None
        shown = yield from send(machines(machines_key(prefix, tag, shared)))
        found = shown.get(parts.machine)
        return found.holder or None if found else None

    def _source(self) -> Machines:
        context, instance = self.context, self.context.instance
        kind = text(context.options, "machine", "fixed" if instance.machine is not None else "redis")
        shared = shared_namespace(context.options)
        namespace = shared or context.tag
        lease = number(context.options, "lease", stored.LEASE if kind == "store" else LEASE, 5, 30 * 86_400)
        folder = Path(instance.directory or tempfile.gettempdir())
        name = _file_name(f"{context.prefix}:{namespace}")
        if kind in ("fixed", "ordinal"):
            machine = self._given(kind)
            return FixedMachine(machine, folder / f"issuer-{name}-{machine}.properties", clock=self._clock)
        numbers = self.layout.machines(self._rack())
        if kind == "store":
            return stored.Stored(
                namespace, instance.key, numbers, clock=self._clock, lease=lease, application=instance.application
            )
        if not context.redis:
            raise ConfigurationError(
                f"machine {kind!r} leases numbers in Redis, but no Redis is configured: set its URL, or create a tag "
                "with the option machine=store (numbers from the store), machine=fixed (the number in "
                "ISSUER_MACHINE) or machine=ordinal (the end of the host name)",
                tag=context.tag,
            )
        key, own = machines_key(context.prefix, context.tag, shared), shared is None
        if kind == "redis":
            return LeasedMachines(key, instance.key, numbers, clock=self._clock, lease=lease, own=own)
        if not instance.directory:
            raise ConfigurationError(
                "machine 'file' needs a directory that outlives the process: set the instance's `directory` "
                "(ISSUER_MACHINE_FILES)"
            )
        path = folder / _file_name(key) / instance.file
        return Copied(key, instance.key, numbers, path, layout=self.layout, clock=self._clock, lease=lease, own=own)

    def _given(self, kind: str) -> int:
        """Return the machine number that an operator has configured for this process."""
        workers = self.layout.workers
        if kind == "ordinal":
            which = self._fitting("the host's ordinal", ordinal(), range(len(workers)))
            return self.layout.machine(workers[which], self._rack())
        machine = self.context.instance.machine
        if machine is None:
            raise ConfigurationError(
                "machine 'fixed': this process has no machine number; set the instance's `machine` (ISSUER_MACHINE)"
            )
        worker = self._fitting("the instance's machine (ISSUER_MACHINE)", machine, workers)
        return self.layout.machine(worker, self._rack())

    def _rack(self) -> int:
        rack = self.context.instance.rack
        racks = self.layout.racks
        return racks[0] if rack is None else self._fitting("the instance's rack (ISSUER_RACK)", rack, racks)

    def _fitting(self, setting: str, value: int, allowed: range) -> int:
        if value not in allowed:
            raise ConfigurationError(
                f"{setting} must be {allowed[0]}..{allowed[-1]}, not {value}: set another value, or create a tag "
                "with more bits for it",
                tag=self.context.tag,
            )
        return value

    @property
    def machine(self) -> int | None:
        tenure = self._ticks.tenure
        return None if tenure is None else tenure.machine

    @property
    def equipped(self) -> bool:
        return self.machine is not None

    # ------------------------------------------------------------------ numbers

    @property
    def ready(self) -> Iterator[int]:
        """Iterator over the numbers of the current millisecond."""
        return self._ticks

    def generating(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        """Return n numbers, at most 2^sequence_bits per millisecond. Raises ClockBehind, NoMachineNumber."""
        numbers = self._ticks.take(n)
        try:
            while len(numbers) < n:
                wait = self._ticks.turn()
                if wait == OVER:
                    yield from self._hold(deadline)
                elif wait:
                    yield from self._wait(wait, deadline)
                numbers += self._ticks.take(n - len(numbers))
        except IssuerError as error:
            error.drawn = numbers
            raise
        return numbers

    def _wait(self, ns: int, deadline: Deadline) -> Steps[None]:
        """Wait for the next millisecond, or for a clock that is slightly behind. `ns`: how long, in nanoseconds."""
        late = ns / 1e9 > deadline.left()
        if ns > _MS:
            # If a process was killed, the last timestamp in its file is up to AHEAD ms in the future. So if this is the
            # first number of this process, the clock may be right: wait without an alarm, even longer than `max_wait`.
            starting = self._ticks.fresh and ns <= AHEAD * _MS
            behind = -(-ns // _MS)
            error = ClockBehind(
                f"tag {self.context.tag!r}: the clock is {lasting(behind / 1000)} behind a timestamp that this "
                "machine number may have used before; no number is issued until it has caught up",
                tag=self.context.tag,
                behind=behind,
            )
            if not starting and not self._ticks.alarmed:
                self._ticks.alarmed = True
                log.warning("%s", error)
                self.context.alarm(error)
            if late or (ns > self._max_wait and not starting):
                raise error
        elif late:
            most = 1 << self.layout.sequence_bits
            problem = f"tag {self.context.tag!r}: the {most} numbers of this millisecond are used up"
            raise Unavailable(problem, tag=self.context.tag, retry_after=0.001)
        yield from sleep(ns / 1e9)

    # ------------------------------------------------------------------ the machine number

    def preparing(self, deadline: Deadline) -> Steps[None]:
        """Take a machine number. Raises NoMachineNumber."""
        yield from self._hold(deadline)

    def found(self, deadline: Deadline) -> Steps[None]:
        """Take the first machine number of a new tag at once: no other process can hold a machine number of this tag.

        If the tag shares a namespace, nothing is done.
        """

        def obtain() -> Steps[None]:
            tenure = yield from self._machines.found()
            if tenure is not None:
                yield from self._take_over(tenure)

        yield from self._once(obtain, lambda: self._ticks.tenure is not None, deadline)

    def sweep(self, deadline: Deadline) -> Steps[None]:
        """Renew the lease of the machine number when it is due. If the machine number is lost, take another one."""
        tenure = self._ticks.tenure
        if tenure is None or self._clock.elapsed() >= tenure.due:
            yield from self._once(self._obtain, lambda: self._ticks.tenure is not tenure, deadline)

    def _hold(self, deadline: Deadline) -> Steps[None]:
        yield from self._once(self._obtain, lambda: self._closed or self._ticks.turn() != OVER, deadline)
        if self._closed:
            raise IssuerError(f"tag {self.context.tag!r}: this issuer is closed", tag=self.context.tag)
        if self._ticks.turn() == OVER:  # otherwise `generating` would call this again for ever
            raise NoMachineNumber(
                f"tag {self.context.tag!r}: the lease of the machine number has expired already, because the clock "
                "went ahead",
                tag=self.context.tag,
            )

    def _obtain(self) -> Steps[None]:
        """Renew the lease of the machine number, or claim another machine number."""
        before = self._ticks.tenure
        if before is not None:
            renewed = yield from self._machines.renew(before)
            if renewed is not None:
                self._ticks.begin(renewed)
                return
            self._ticks.drop()
            log.warning("tag %r: machine number %d is lost; leasing another one", self.context.tag, before.machine)
        if self._closed:
            return
        yield from self._take_over((yield from self._machines.claim()))

    def _take_over(self, tenure: Tenure) -> Steps[None]:
        if not self._ticks.begin(tenure):  # closed in the meantime
            yield from self._machines.release(tenure, tenure.floor)

    def closing(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - the driver bounds each call
        """Release the machine number, and record the last timestamp that was used."""
        self._closed = True
        tenure, used = self._ticks.close()
        if tenure is not None:
            try:
                yield from self._machines.release(tenure, used)
            except IssuerError as error:
                log.info(
                    "tag %r: machine number %d could not be released and will expire: %s",
                    self.context.tag,
                    tenure.machine,
                    error,
                )

    def after_fork(self) -> None:
        """Make no more numbers in a forked child, because its parent makes the same numbers."""
        self._closed = True
        self._ticks.after_fork()
        self._machines.after_fork()


def _checked(options: Mapping[str, Scalar], clock: Clock) -> Layout:
    check_names("snowflake", options, OPTIONS)
    layout = Layout.of(options)
    if not layout.epoch <= clock.ms() < layout.ends:
        raise ConfigurationError(f"the current time is outside the layout: {layout}")
    whole(options, "max_wait", MAX_WAIT, 0, 60_000)
    number(options, "lease", LEASE, 5, 30 * 86_400)
    shared_namespace(options)
    if (kind := text(options, "machine", "redis")) not in SOURCES:
        raise ConfigurationError(f"option machine must be one of {', '.join(SOURCES)}, not {brief(kind)}")
    return layout


def shared_namespace(options: Mapping[str, Scalar]) -> str | None:
    """Return the namespace that a tag shares with other tags, or None. Raises ConfigurationError."""
    if "namespace" not in options:
        return None
    try:
        namespace = check_tag(options["namespace"])
    except InvalidArgument as error:
        raise ConfigurationError(f"option namespace must be a valid tag name: {error}") from error
    if "lease" in options and options.get("machine") != "store":
        # If Redis was emptied, the `lease` in the first claim decides how long new leases wait for old ones to expire.
        # The first claim can come from any of these tags. So the option must be the same for all of them.
        raise ConfigurationError(
            f"option lease cannot be set for tags that share a namespace: it is {LEASE:g} s for all of them"
        )
    return namespace


def _file_name(name: str) -> str:
    """Cut a long name, and add a digest, because a file name has at most 255 bytes."""
    quoted = quote(name, safe="")
    if len(quoted) <= LONGEST_NAME:
        return quoted
    return f"{quoted[:LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
