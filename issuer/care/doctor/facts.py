"""The facts that `doctor` judges. Gathered in `examination`; a test may make up its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from issuer.errors import IssuerError
from issuer.gateway import Hash
from issuer_persistence.records import LedgerEntry, StoreFacts, Tag


@dataclass(frozen=True, slots=True)
class Clock:
    """A server's clock: how far it is ahead of this machine's, in ms, give or take `doubt`: half the round trip."""

    ahead: int
    doubt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """A replica as its master sees it, and what it says itself.

    state: "online" when it follows. lag: seconds since it last said how far it is. behind: bytes that it still lacks.
    read_only: None if it could not be asked.
    """

    name: str
    state: str = "online"
    lag: int = 0
    behind: int = 0
    read_only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """A Redis server that issues numbers.

    info: the fields of INFO; None if they can't be had, and `error` says why. settings: what CONFIG GET answered; a
    name is missing if that was denied, and None if the server has no such setting. clock: None if `clock_error` says
    why TIME wasn't answered.
    """

    name: str
    info: Mapping[str, str] | None = None
    error: IssuerError | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)
    clock: Clock | None = None
    clock_error: IssuerError | None = None
    replicas: tuple[ReplicaFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFacts:
    """The answer to a draw from a hash that isn't there: "empty" if scripts run and the fence is there.

    error: the refusal of the draw, or of one of the commands that scripts give.
    """

    status: str = ""
    error: IssuerError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagFacts:
    """A tag whose hash and ledger were looked at. rate: numbers per second, None if too few reservations tell it.

    rated_for: for how many seconds that rate was seen, None: for long enough.
    hash: None in direct mode, or if `error` says why it can't be had. store_max: what the store said after the hash was
    read, when that had looked higher than the store's record; None otherwise. hashes: newest entries of two hashes in
    Redis that get its segments in turns, None if there is one.
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
    """All that was seen.

    redis: what the messages call it, None if the issuer is direct. redis_error: why its masters can't be found.
    store_error: why the store can't be asked. records: all tags. witnessed: what a journal knows to be taken of
    them. tags: those that were looked at closely. lease: numbers that a process draws ahead of trend tags that don't
    say it. timeout: how long a caller waits, in seconds. window: after how many an elected loader that is silent is
    replaced.
    """

    store: str
    timeout: float
    window: float
    lease: int = 0
    redis: str | None = None
    redis_error: IssuerError | None = None
    servers: list[ServerFacts] = field(default_factory=list)
    draw: DrawFacts | None = None
    store_facts: StoreFacts | None = None
    store_id: str | None = None
    store_error: IssuerError | None = None
    store_clock: Clock | None = None
    records: list[Tag] = field(default_factory=list)
    witnessed: Mapping[str, int] = field(default_factory=dict)
    tags: list[TagFacts] = field(default_factory=list)
