"""Facts that `doctor` judges, and the findings that it makes of them. A test may make up its own facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from issuer.advice import Words, filled, python
from issuer.errors import IssuerError
from issuer.gateway import Hash
from issuer.settings import Settings
from issuer.times import lasting
from issuer_persistence.facts import StoreFacts
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import Tag


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """Difference between a server's clock and this machine's: `ahead` +- `doubt` ms. `doubt` is half the round trip."""

    ahead: int
    doubt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """A replica, as its master and the replica itself report it.

    state: "online" if it follows. lag: seconds since its last report to the master. behind: bytes that it has not
    received. read_only: None if the replica did not answer.
    """

    name: str
    state: str = "online"
    lag: int = 0
    behind: int = 0
    read_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A Redis server that issues numbers.

    info: fields of INFO. None if `error` is set. settings: results of CONFIG GET by name. A name is missing if CONFIG
    GET was denied, and None if the server has no such setting. clock: None if `clock_error` is set, the error of TIME.
    """

    name: str
    info: Mapping[str, str] | None = None
    error: IssuerError | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)
    clock: ClockDifference | None = None
    clock_error: IssuerError | None = None
    replicas: tuple[ReplicaFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFacts:
    """Result of a draw from a hash that doesn't exist.

    status: "empty" if scripts run and the fence works. error: error of the draw, or of a command that scripts use.
    """

    status: str = ""
    error: IssuerError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFacts:
    """A tag that was examined closely.

    rate: numbers per second, None if there are too few reservations. rated_for: period of that rate in seconds, None if
    it is long enough. hash: None in direct mode, and if `error` is set. store_max: the store's `max`, read again after
    the hash, if the hash had higher numbers than the record; else None. hashes: newest entries of two Redis hashes that
    get the tag's segments in turns, None if there is one hash.
    """

    record: Tag
    hash: Hash | None = None
    error: IssuerError | None = None
    rate: float | None = None
    rated_for: float | None = None
    store_max: int | None = None
    hashes: tuple[LedgerEntry, LedgerEntry] | None = None


@dataclass(slots=True, kw_only=True)
class Facts:
    """All facts.

    redis: name of Redis in messages, None in direct mode. redis_error: error of the search for its masters.
    store_error: error of a request to the store. records: all tags. witnessed: highest number of each tag in the
    journal. tags: tags that were examined closely.
    """

    settings: Settings
    store: str
    redis: str | None = None
    redis_error: IssuerError | None = None
    servers: list[ServerFacts] = field(default_factory=list)
    draw: DrawFacts | None = None
    store_facts: StoreFacts | None = None
    store_id: str | None = None
    store_error: IssuerError | None = None
    store_clock: ClockDifference | None = None
    records: list[Tag] = field(default_factory=list)
    witnessed: Mapping[str, int] = field(default_factory=dict)
    tags: list[TagFacts] = field(default_factory=list)


# ---------------------------------------------------------------------- findings

#: "weak": numbers could repeat, order could break, or the service stops, with or without a warning.
#: "advice": a fault would cost more than it has to. "ok": looked at and well. "unknown": could not be seen.
Level = Literal["weak", "advice", "unknown", "ok"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of `doctor`.

    Attributes:
        check: Name of the check, for programs.
        level: Severity. "weak": duplicates, lost order or an outage are possible. "advice": a fault would do more harm
            than necessary. "ok": there is no problem. "unknown": the check was not possible, for example because a
            server did not answer.
        subject: The server, store, setting or tag that was checked.
        what: Fact that was found.
        why: Consequence of the fact for the numbers.
        advice: Recommended action, as a template. `remedy` is the readable form.
        tag: Name of the tag concerned, or None.
        error: Error that prevented the check, or None.
        others: Other tags that the advice names.
    """

    check: str
    level: Level
    subject: str
    what: str
    why: str
    advice: str = ""
    tag: str | None = None
    error: IssuerError | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def told(self, words: Words) -> str:
        """Return the recommended action in the words of one interface: Python, command line or HTTP. "" for "ok"."""
        return filled(self.advice, words, self.tag, self.others)

    @property
    def remedy(self) -> str:
        """Recommended action, in terms of Python. "" for level "ok"."""
        return self.told(python)


@dataclass(frozen=True, slots=True)
class Check:
    """Check of one subject. Each method makes a finding of one level; see `Finding` for the arguments."""

    name: str
    subject: str
    tag: str | None = None

    def weak(self, what: str, why: str, do: str, *, error: IssuerError | None = None, **others: str) -> Finding:
        """Return a finding of the level "weak"."""
        return Finding(self.name, "weak", self.subject, what, why, do, self.tag, error, others)

    def advice(self, what: str, why: str, do: str, **others: str) -> Finding:
        """Return a finding of the level "advice"."""
        return Finding(self.name, "advice", self.subject, what, why, do, self.tag, None, others)

    def unknown(self, what: str, why: str, do: str) -> Finding:
        """Return a finding of the level "unknown"."""
        return Finding(self.name, "unknown", self.subject, what, why, do, self.tag)

    def ok(self, what: str, why: str) -> Finding:
        """Return a finding of the level "ok"."""
        return Finding(self.name, "ok", self.subject, what, why)


# ---------------------------------------------------------------------- clocks

#: Difference in ms from which on a clock isn't synchronized. With NTP, clocks differ by less than 100 ms.
APART = 2_000

#: Difference in ms from which on rate and runway are wrong, because they are computed from times in the ledger: a
#: twentieth of the 20 minutes that a segment should last.
FAR_APART = 60_000

_WHY = (
    "Numbers stay unique and in order with any clocks. But `timestamp` and the times in the ledger come from the clock "
    "of the machine that wrote them. "
)


def compared(check: str, subject: str, clock: ClockDifference | None) -> Finding:
    """Return the finding about the difference of the clocks, less the uncertainty of the round trip."""
    if clock is None:
        return Check(check, subject).unknown(
            "its clock could not be read",
            _WHY + "If clocks differ, these times are wrong.",
            "Compare the output of `date` on both machines.",
        )
    apart = max(0, abs(clock.ahead) - clock.doubt)
    way = "ahead of" if clock.ahead > 0 else "behind"
    if apart < APART:
        return Check(check, subject).ok("its clock agrees with this machine's", _WHY + "These times are right.")
    what = f"its clock is {lasting(apart / 1000)} {way} this machine's"
    remedy = "Run NTP (chrony, systemd-timesyncd) on both machines. The output of `date` shows which clock is wrong."
    if apart < FAR_APART:
        return Check(check, subject).advice(what, _WHY + "These times are wrong by this difference.", remedy)
    why = _WHY + "So the rate, the runway and the times that `who` shows are wrong."
    return Check(check, subject).weak(what, why, remedy)
