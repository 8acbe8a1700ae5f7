"""Facts that `doctor` gathers, and the findings that its checks derive from these facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from issuer.advice import Words, filled, python
from issuer.care.discrepancies import Discrepancy
from issuer.errors import IssuerError
from issuer.gateway.tag_scripts import Hash
from issuer.settings import Settings
from issuer.times import lasting
from issuer_persistence.facts import StoreFacts
from issuer_persistence.records import Tag


@dataclass(frozen=True, slots=True)
class ClockDifference:
    """Difference between a server's clock and this machine's clock, in ms.

    `ahead`: how far the server's clock is ahead, negative if it is behind. `doubt`: uncertainty of `ahead`, half of the
    time that the request took.
    """

    ahead: int
    doubt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """Facts about a replica, reported by its master and by the replica itself.

    `state`: "online" if it follows its master. `lag`: seconds since its last report to the master. `behind`: how many
    bytes it has not received yet. `read_only`: None if it did not answer.
    """

    name: str
    state: str = "online"
    lag: int = 0
    behind: int = 0
    read_only: bool | None = None


@dataclass(slots=True, kw_only=True)
class ServerFacts:
    """Facts about a Redis server that issues numbers.

    `info`: fields of INFO. `settings`: values from CONFIG GET, None if the server has no such setting. If CONFIG GET is
    denied, the name is missing. `clock_error`, `node_error`: errors of TIME and of CLUSTER MYID.
    """

    name: str
    info: Mapping[str, str] | None = None
    error: IssuerError | None = None
    settings: dict[str, str | None] = field(default_factory=dict)
    clock: ClockDifference | None = None
    clock_error: IssuerError | None = None
    node_error: IssuerError | None = None
    replicas: tuple[ReplicaFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFacts:
    """Result of a test draw from a hash that doesn't exist. If the Lua scripts work, `status` is "empty".

    `error` is the error of the draw, or of a command that the scripts use.
    """

    status: str = ""
    error: IssuerError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFacts:
    """Facts about a tag that was examined closely. `hash`: None if it was not read, or is damaged.

    `found`: what `verify` reports. `error`: what prevented the examination. `rate`: numbers used per second, None if
    there are too few reservations. `rated_for`: for how long it was measured, in seconds.
    """

    record: Tag
    hash: Hash | None = None
    found: Sequence[Discrepancy] = ()
    error: IssuerError | None = None
    rate: float | None = None
    rated_for: float | None = None


#: Severity of a finding, see `Finding.level`.
Level = Literal["weak", "advice", "unknown", "ok"]


@dataclass(slots=True, kw_only=True)
class Facts:
    """All facts on which `doctor` bases its findings. A fact is None if it could not be gathered, or does not apply.

    The tags are examined by pages. After each page, its findings are in `kept`, and the facts about its tags are
    dropped.

    Attributes:
        redis: Name of Redis in messages. None if there is no Redis.
        silence: After how many ms of silence the Sentinels replace the master. 0 if unknown, None without Sentinels.
        report_error: Error if Redis denied PUBLISH. Draws need it to report to keepers the tags that need a segment.
        records: Records of the tags of the present page.
        damaged: What `verify` reports about damaged records of this page.
        tags: Facts about the tags of this page.
        bare: Names of tags that have the same name as a tag of this page, but without blanks around it.
        there: Number of tags in the store.
        checked: Number of tags whose records were checked.
        examined: Number of tags whose ledger and hash were checked, too.
        left_out: Error of the first tag that could not be examined, or None.
        kept: Findings about the tags of earlier pages, by check and level. Each list is bounded.
        more: How many findings were left out of these lists.
    """

    settings: Settings
    store: str
    redis: str | None = None
    redis_error: IssuerError | None = None
    servers: list[ServerFacts] = field(default_factory=list)
    draw: DrawFacts | None = None
    silence: int | None = None
    report_error: IssuerError | None = None
    store_facts: StoreFacts | None = None
    store_id: str | None = None
    store_error: IssuerError | None = None
    store_clock: ClockDifference | None = None
    records: list[Tag] = field(default_factory=list)
    damaged: list[Discrepancy] = field(default_factory=list)
    tags: list[TagFacts] = field(default_factory=list)
    bare: set[str] = field(default_factory=set)
    there: int = 0
    checked: int = 0
    examined: int = 0
    left_out: IssuerError | None = None
    kept: dict[tuple[str, Level], list[Finding]] = field(default_factory=dict)
    more: Counter[tuple[str, Level]] = field(default_factory=Counter)

    @property
    def reached(self) -> bool:
        """Whether a Redis server has answered. If none has, no hash is read: each read would wait for its timeout."""
        return any(server.info is not None for server in self.servers)


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding: the result that `doctor` reports for one check of one subject.

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
        others: Names of other tags, such as {"whole": "orders"}. They fill the placeholders of these names in `advice`.
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
    """One check of one subject. It has a method for each level, which creates a finding.

    `do` is the `advice` of the finding. All other arguments have the names of the attributes of `Finding`.
    """

    name: str
    subject: str
    tag: str | None = None

    def weak(self, what: str, why: str, do: str, *, error: IssuerError | None = None, **others: str) -> Finding:
        return Finding(self.name, "weak", self.subject, what, why, do, self.tag, error, others)

    def advice(self, what: str, why: str, do: str, **others: str) -> Finding:
        return Finding(self.name, "advice", self.subject, what, why, do, self.tag, None, others)

    def unknown(self, what: str, why: str, do: str, *, error: IssuerError | None = None) -> Finding:
        return Finding(self.name, "unknown", self.subject, what, why, do, self.tag, error)

    def ok(self, what: str, why: str) -> Finding:
        return Finding(self.name, "ok", self.subject, what, why)


#: Clocks that differ by this many ms or more are not synchronized. With NTP, clocks differ by less than 100 ms.
APART = 2_000

#: If clocks differ by this many ms or more, rate and runway are wrong, because they are computed from times in the
#: ledger. This is a twentieth of the 20 minutes that a step should last.
FAR_APART = 60_000

_WHY = (
    "Numbers stay unique and in order with any clocks. But `timestamp` and the times in the ledger come from the clock "
    "of the machine that wrote them. "
)


def compared(check: str, subject: str, clock: ClockDifference | None) -> Finding:
    """Return the finding about a clock difference. A difference within its uncertainty, `doubt`, is ignored."""
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
