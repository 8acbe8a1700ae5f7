"""Shows machine numbers to operators, and sets them aside after a clock was far ahead.

No timestamp may be used twice with one machine number. So if a clock was far ahead, the process would have to wait
until its last timestamp has passed. Setting the machine number aside removes the holder's name and lease, so the
process gets another machine number. The timestamps stay recorded: until these timestamps have passed, a process gets
the old machine number only if no other number is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from issuer.core.parts import is_machine
from issuer.core.record import select
from issuer.core.scheme_record import MACHINE, PART_OF, SNOWFLAKE, strategy
from issuer.core.steps import Steps, ask, send
from issuer.errors import InvalidArgument
from issuer.gateway import server_commands
from issuer.gateway.keys import PART
from issuer.gateway.machine_scripts import machine_unbind, machines, machines_key
from issuer.strategies.options import Scalar, number, text
from issuer.strategies.snowflake import stored
from issuer.strategies.snowflake.layout import Layout
from issuer.strategies.snowflake.machines import LEASE, MARGIN, Clock
from issuer.strategies.snowflake.strategy import Snowflake, shared_namespace
from issuer_persistence.records import Tag

#: Sources (values of the option `machine`) that assign machine numbers to processes. With the other sources, an
#: operator sets the machine number of each process.
SHARED = ("redis", "file", "store")


@dataclass(frozen=True, slots=True)
class MachineNumber:
    """A machine number that was used by a snowflake tag, or by the tags that share its namespace.

    Attributes:
        machine: The machine number.
        holder: Process that holds the machine number now, or held it last, as application.port.ip. "" if unknown.
        held: True if a process holds the machine number now. None if the machine numbers are in the store, which does
            not record whether a process holds a number.
        last: Highest timestamp that numbers with this machine number may contain, in ms since 1970.
        ahead: How far `last` is in the future, in ms. 0 if `last` is in the past. `last` can be in the future although
            all clocks are right, because a lease includes time in the future. So `ahead` is also 0 if `last` is in the
            future by at most the duration of a lease plus 10 s, by which clocks may differ.
    """

    machine: int
    holder: str
    held: bool | None
    last: int
    ahead: int


@dataclass(frozen=True, slots=True)
class MachineNumbers:
    """Machine numbers of a tag.

    Attributes:
        used: Machine numbers that were ever used, in increasing order.
        of: How many machine numbers the tag can have.
    """

    used: list[MachineNumber]
    of: int


def look(record: Tag, prefix: str) -> Steps[MachineNumbers]:
    """Return the machine numbers that were ever used, in increasing order. Nothing is changed.

    Times are compared with the clock of the server that keeps them: Redis or the store. If the store has no clock, this
    machine's clock is used.

    Raises:
        InvalidArgument: The tag has no machine numbers, or keeps them in files.
    """
    options = _options(record)
    shared, of = shared_namespace(options), 1 << Layout.of(options).machine_bits
    if _kept_in_store(options):
        used = yield from _in_store(shared or record.tag, options)
        return MachineNumbers(used, of)
    key = machines_key(prefix, record.tag, shared)
    shown = yield from send(machines(key))
    now = yield from send(server_commands.server_time(key))
    lease = number(options, "lease", LEASE, 5, 30 * 86_400)
    used = [
        MachineNumber(each, found.holder, found.held, found.last, _ahead(found.last, now, lease if found.held else 0))
        for each, found in sorted(shown.items())
    ]
    return MachineNumbers(used, of)


def set_aside(record: Tag, prefix: str) -> Steps[list[MachineNumber]]:
    """Set aside all machine numbers that were used with future timestamps, and return them. This can be repeated."""
    options = _options(record)
    found = yield from look(record, prefix)
    shared = shared_namespace(options)
    ahead = [each for each in found.used if each.ahead]
    for each in ahead:
        if _kept_in_store(options):
            yield from stored.forget_holder(shared or record.tag, each.machine)
        else:
            key = machines_key(prefix, record.tag, shared)
            for call in machine_unbind(key, each.machine):
                yield from send(call)
    return ahead


def _options(record: Tag) -> Mapping[str, Scalar]:
    """Return the tag's options. Raises InvalidArgument if the tag has no machine numbers, or keeps them in files."""
    name = strategy(record.scheme)
    if name != SNOWFLAKE:
        raise InvalidArgument(
            f"tag {record.tag!r} has no machine numbers, because its strategy is {name}", tag=record.tag
        )
    options: Mapping[str, Scalar] = record.scheme.get("options", {})
    Snowflake.check(options)
    kind = text(options, "machine", "redis")
    if kind not in SHARED:
        raise InvalidArgument(
            f"tag {record.tag!r} has machine={kind}: the last timestamp of each machine number is in a file on the "
            "host of its process. Use another machine number for the process (ISSUER_MACHINE, or another host name)",
            tag=record.tag,
        )
    return options


def _kept_in_store(options: Mapping[str, Scalar]) -> bool:
    return text(options, "machine", "redis") == "store"


def _in_store(namespace: str, options: Mapping[str, Scalar]) -> Steps[list[MachineNumber]]:
    records = yield from select(
        lambda each: each.scheme.get(PART_OF) == namespace and is_machine(each), f"{namespace}{PART}"
    )
    theirs = (yield from ask(lambda store, timeout: store.examine(timeout=timeout))).time
    now = Clock().ms() if theirs is None else theirs
    lease = number(options, "lease", stored.LEASE, 5, 30 * 86_400)
    return sorted(
        (
            MachineNumber(_machine(each), stored.holder_of(each), None, each.max, _ahead(each.max, now, lease))
            for each in records
        ),
        key=lambda each: each.machine,
    )


def _machine(record: Tag) -> int:
    """Return the machine number of a tag. In records of older versions, only the tag's name contains it."""
    return int(record.scheme.get(MACHINE, record.tag.rpartition("-")[2]))


def _ahead(last: int, now: int, lease: float) -> int:
    beyond = last - now
    return beyond if beyond > (lease + MARGIN) * 1000 else 0
