"""Services and settings that the supplies of an issuer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from issuer.clock import Deadline
from issuer.core.events import Emit
from issuer.core.scheme_record import Numbering
from issuer.core.steps import Flight, Steps
from issuer.core.supply.local_buffer import FastPath
from issuer.core.supply.ownership import Identity
from issuer.settings import Settings
from issuer_persistence.records import Tag

#: A job of the scheduler: steps to run, by the deadline that it is given.
Job = Callable[[Deadline], Steps[object]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Services and settings that the supplies of an issuer share.

    `redis`: whether there is one. `store`: the store's URL, for messages. `background` runs a job on the scheduler, and
    returns False if no scheduler is alive; `scheduled`: whether there should be one. `flight` makes a flight for this
    driver. `attend`: has the scheduler sweep from now on. `fast_path`: where open numbers are found. `scheme` returns
    the scheme that makes a tag's numbers of its counter; None: they are the counter. It raises ConfigurationError where
    that can't be done here. `identity`: the store's. `emit` delivers an event to the observers. `application`: the
    service's label, for the ledger.
    """

    settings: Settings
    redis: bool
    store: str
    background: Callable[[Job], bool]
    scheduled: bool
    flight: Callable[[], Flight]
    attend: Callable[[], None]
    fast_path: FastPath
    scheme: Callable[[Tag], Numbering | None]
    identity: Identity
    emit: Emit
    application: str = ""
