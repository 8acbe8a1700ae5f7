"""Services and settings that all tags of an issuer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from issuer.clock import Deadline
from issuer.core.events import Emit
from issuer.core.record import Identity
from issuer.core.scheme_record import Numbering
from issuer.core.steps import Flight, Steps
from issuer.core.supply.local_buffer import FastPath
from issuer.core.supply.source import TagSource
from issuer.settings import Settings
from issuer_persistence.records import Tag

#: A job of the scheduler: a function that returns the steps to run before the deadline.
Job = Callable[[Deadline], Steps[object]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Services and settings that all tags of an issuer share.

    Attributes:
        settings: Settings of the issuer.
        window: Duration of an election in seconds. The elected process must load the segment within this time.
        makes: Whether a tag is created at its first use.
        redis: Whether this issuer uses Redis.
        store: URL of the store, for messages.
        background: Runs a job on the scheduler. Returns False if no scheduler is alive.
        scheduled: Whether there should be a scheduler.
        flight: Makes a Flight (work that one caller does for all callers), for threads or for tasks.
        attend: Lets the scheduler check the tags in the background from now on.
        fast_path: Where the numbers that `next` takes without a lock are published.
        scheme: Returns the scheme that converts a tag's counter to the numbers that users see. Raises
            ConfigurationError.
        identity: Id of the store.
        moving: Tags that need background work: callers have drawn from them since the last sweep, or a sweep has work
            left. A caller adds a tag when it uses the slow path, see `Supply.used`.
        seen: Highest number seen of each tag that this process has forgotten, because nobody used it.
        emit: Delivers an event to the observers.
        elsewhere: Whether the server of this client draws the numbers of the tag with this record.
        source: Loads the code of strategies. Returns the function that makes the source of a tag without a counter.
        application: Name of the service, for the ledger.
    """

    settings: Settings
    window: float
    makes: bool
    redis: bool
    store: str
    background: Callable[[Job], bool]
    scheduled: bool
    flight: Callable[[], Flight]
    attend: Callable[[], None]
    fast_path: FastPath
    scheme: Callable[[Tag], Numbering]
    identity: Identity
    moving: set[str]
    seen: dict[str, int]
    emit: Emit
    elsewhere: Callable[[Tag], bool]
    source: Callable[[], Callable[[Tag], TagSource]]
    application: str = ""
