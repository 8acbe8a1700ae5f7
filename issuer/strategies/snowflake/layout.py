"""Layout of the bits in a snowflake number.

    0 | time, 41 bits: ms since the epoch | machine, 10 bits: worker, then rack | sequence, 12 bits

Each width and the epoch can be set. Bits above the sum of the widths are 0, so a number is never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from issuer.errors import ConfigurationError, InvalidArgument, brief
from issuer.strategies.options import Scalar, whole

#: Maximum width of a number in bits, so that it fits into a signed 64-bit integer.
MOST_BITS = 63

#: 2020-01-01, in ms since 1970.
EPOCH = 1_577_836_800_000

#: The options that define a layout.
OPTIONS = ("epoch", "time_bits", "machine_bits", "worker_bits", "rack_bits", "sequence_bits")

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
#: The first time that a datetime cannot represent, in ms since 1970.
_NO_DATE = (datetime.max.replace(tzinfo=UTC) - _BEGINNING) // _MS


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a snowflake number.

    Attributes:
        timestamp: Time in ms since 1970.
        machine: Machine number.
        worker: Worker number. If the layout has no rack bits, the machine number.
        rack: Rack number. 0 if the layout has no rack bits.
        sequence: Sequence number within the millisecond.
    """

    timestamp: int
    machine: int
    worker: int
    rack: int
    sequence: int

    @property
    def time(self) -> datetime | None:
        """Timestamp as a datetime in UTC. None if it is after the year 9999."""
        return _date(self.timestamp)


@dataclass(frozen=True, slots=True)
class Layout:
    """Widths of the parts of a snowflake number. Their sum is at most 63 bits.

    The machine number consists of the worker number followed by the rack number. If the layout has rack bits, worker
    and rack numbers start at 1. If it has no rack bits, machine numbers start at 0.

    Attributes:
        epoch: Moment from which the time in the number is counted, in ms since 1970.
        time_bits: Bits for the time, 1 or more.
        worker_bits: Bits for the worker, 1 or more.
        rack_bits: Bits for the rack, 0 or more.
        sequence_bits: Bits for the sequence, 1 or more.

    Raises:
        ConfigurationError: A width is out of its range, or the sum is above 63.
    """

    epoch: int = EPOCH
    time_bits: int = 41
    worker_bits: int = 10
    rack_bits: int = 0
    sequence_bits: int = 12

    def __post_init__(self) -> None:
        widths = {name: getattr(self, name) for name in ("time_bits", "worker_bits", "rack_bits", "sequence_bits")}
        for name, bits in widths.items():
            whole({name: bits}, name, bits, 0 if name == "rack_bits" else 1, MOST_BITS)
        whole({"epoch": self.epoch}, "epoch", self.epoch, 0, 2**MOST_BITS - 1)
        total = sum(widths.values())
        if total > MOST_BITS:
            each = " + ".join(f"{name} {bits}" for name, bits in widths.items())
            raise ConfigurationError(
                f"{each} make {total} bits, but a number has only {MOST_BITS}, because it is never negative"
            )

    @classmethod
    def of(cls, options: Mapping[str, Scalar]) -> Layout:
        """Return the layout for the options of a scheme.

        `epoch` is a time in ms since 1970, or an ISO date, in UTC by default. `machine_bits` is the sum of
        `worker_bits` and `rack_bits`. `machine_bits` can be given in place of `worker_bits`.

        Raises:
            ConfigurationError: An option is out of its range. The message names the option.
        """
        rack = whole(options, "rack_bits", 0, 0, MOST_BITS)
        usual = max(1, whole(options, "machine_bits", 10, 1, MOST_BITS) - rack)
        worker = whole(options, "worker_bits", usual, 1, MOST_BITS)
        machine = options.get("machine_bits", worker + rack)
        if machine != worker + rack:
            raise ConfigurationError(
                f"option machine_bits {machine} is not worker_bits {worker} + rack_bits {rack}: omit one of them"
            )
        return cls(
            _epoch(options.get("epoch", EPOCH)),
            whole(options, "time_bits", 41, 1, MOST_BITS),
            worker,
            rack,
            whole(options, "sequence_bits", 12, 1, MOST_BITS),
        )

    # ------------------------------------------------------------------ ranges

    @property
    def machine_bits(self) -> int:
        """Bits of worker and rack together."""
        return self.worker_bits + self.rack_bits

    @property
    def shift(self) -> int:
        """Number of bits that follow the time."""
        return self.machine_bits + self.sequence_bits

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return self.time_bits + self.shift

    @property
    def ends(self) -> int:
        """First time, in ms since 1970, for which the layout has no numbers."""
        return self.epoch + (1 << self.time_bits)

    @property
    def exhausted(self) -> datetime | None:
        """`ends` as a datetime. None if it is after the year 9999."""
        return _date(self.ends)

    @property
    def workers(self) -> range:
        """Valid worker numbers."""
        return range(1 if self.rack_bits else 0, 1 << self.worker_bits)

    @property
    def racks(self) -> range:
        """Valid rack numbers."""
        return range(1, 1 << self.rack_bits) if self.rack_bits else range(1)

    def machines(self, rack: int) -> range:
        """Return the machine numbers of a rack.

        Raises:
            InvalidArgument: There is no such rack.
        """
        first = self.machine(self.workers[0], rack)
        return range(first, 1 << self.machine_bits, 1 << self.rack_bits)

    def check_machine(self, machine: int) -> int:
        """Return the machine number if it is valid.

        Raises:
            InvalidArgument: There is no such machine.
        """
        _check("machine", machine, range(1 << self.machine_bits))
        if self.rack_bits:
            _check("worker", machine >> self.rack_bits, self.workers)
            _check("rack", machine & ((1 << self.rack_bits) - 1), self.racks)
        return machine

    # ------------------------------------------------------------------ numbers

    def machine(self, worker: int, rack: int = 0) -> int:
        """Return the machine number for a worker and a rack. Worker 1 in 8 bits and rack 1 in 2 bits make 0b101.

        Raises:
            InvalidArgument: There is no such worker or rack.
        """
        _check("worker", worker, self.workers)
        _check("rack", rack, self.racks)
        return worker << self.rack_bits | rack

    def compose(self, timestamp: int, machine: int, sequence: int = 0) -> int:
        """Return the number for its parts.

        Args:
            timestamp: Time in ms since 1970.
            machine: Machine number.
            sequence: Sequence number within the millisecond.

        Raises:
            InvalidArgument: A part is out of its range. The message names the part.
        """
        _check("timestamp", timestamp, range(self.epoch, self.ends))
        _check("sequence", sequence, range(1 << self.sequence_bits))
        return (timestamp - self.epoch) << self.shift | self.check_machine(machine) << self.sequence_bits | sequence

    def decompose(self, value: int) -> Parts:
        """Return the parts of a number.

        Raises:
            InvalidArgument: The number does not fit the layout.
        """
        _check("value", value, range(1 << self.bits))
        machine = self.check_machine(value >> self.sequence_bits & ((1 << self.machine_bits) - 1))
        return Parts(
            (value >> self.shift) + self.epoch,
            machine,
            machine >> self.rack_bits,
            machine & ((1 << self.rack_bits) - 1),
            value & ((1 << self.sequence_bits) - 1),
        )

    def __str__(self) -> str:
        machine = f"{self.worker_bits} + {self.rack_bits}" if self.rack_bits else str(self.worker_bits)
        end = self.exhausted
        return (
            f"{self.time_bits} bits time since {_shown(_date(self.epoch))}, {machine} machine, {self.sequence_bits} "
            f"sequence; ends {_shown(end)}"
        )


def _check(name: str, value: object, allowed: range) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
        raise InvalidArgument(f"{name} must be {allowed.start}..{allowed.stop - 1}, not {brief(value)}", value=value)


def _date(ms: int) -> datetime | None:
    return _BEGINNING + ms * _MS if ms < _NO_DATE else None


def _shown(date: datetime | None) -> str:
    return "after the year 9999" if date is None else f"{date:%Y-%m-%d}"


def _epoch(value: Scalar) -> int:
    """Return the value of the option `epoch`, a time in ms or an ISO date, in ms since 1970."""
    if isinstance(value, str):
        try:
            date = datetime.fromisoformat(value)
        except ValueError as error:
            raise ConfigurationError(
                f"option epoch must be an ISO date or ms since 1970, not {brief(value)}"
            ) from error
        value = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - _BEGINNING) // _MS
    return whole({"epoch": value}, "epoch", EPOCH, 0, 2**MOST_BITS - 1)
