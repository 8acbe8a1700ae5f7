"""A store over HTTP: the server of another issuer makes each call, in its own store.

A reservation has its id before it is sent. If the reply is lost, the same reservation is requested again, and the
server returns the range that this id has in its ledger. So a lost reply neither repeats numbers nor loses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from issuer_persistence.contract import CallDeadline, Store, in_turn
from issuer_persistence.errors import Corrupt, StoreError, Unconfirmed
from issuer_persistence.facts import StoreFacts, Upgrade
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Purpose, Reservation
from issuer_persistence.pruning import EVERY, Pruned
from issuer_persistence.reads import Read, ReadLedger, ReadSegments, ReadTag, alike
from issuer_persistence.records import Tag, TagChanges, TagSettings, check_argument, fresh_version
from issuer_persistence.remote import messages
from issuer_persistence.remote.channel import Channel, Lost

T = TypeVar("T")

#: Path of the route that makes the calls.
PATH = "/v1/store"

#: Tags per request.
PAGE = 1000

#: The calls that a batch can have: their names in a request, and functions that read their results.
READS: Mapping[type[Read[Any]], tuple[str, Callable[[Any], Any]]] = {
    ReadTag: ("get", lambda found: None if found is None else messages.live(found)),
    ReadLedger: ("ledger", messages.entries),
    ReadSegments: ("segments", messages.page),
}


class RemoteStore(Store):
    """The store of another issuer, through its server. The server must allow the scope `reserve` for the tags."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @classmethod
    def open(cls, url: str) -> RemoteStore:
        return cls(Channel(url))

    @property
    def url(self) -> str:
        return self._channel.url

    def _call(self, name: str, timeout: float, tag: str = "", **arguments: Any) -> Any:
        content = {"call": name, "tag": tag, "arguments": arguments, "timeout": timeout}
        found = self._channel.post(PATH, content, timeout)
        if not isinstance(found, dict) or not ("result" in found or "error" in found):
            raise Unconfirmed(f"{self.url}: the reply is not one of an issuer")
        if "error" in found:
            raise messages.error_of(found["error"])
        return found["result"]

    def store_id(self, *, timeout: float) -> str:
        return str(self._call("store_id", timeout))

    def made_id(self, *, timeout: float) -> str:
        return str(self._call("made_id", timeout))

    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        wanted = {tag: messages.settings_sent(each) for tag, each in settings.items()}
        return [messages.live(each) for each in self._call("create_many", timeout, settings=wanted)]

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        found = self._call("get", timeout, tag)
        return None if found is None else messages.live(found)

    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag | Corrupt]:
        check_argument("count", count, 1)
        deadline, found = CallDeadline(timeout), list[Tag | Corrupt]()
        while len(found) < count:
            # The server shows only the tags of the token. `after` is the last one that it has looked at.
            wanted = min(count - len(found), PAGE)
            page = self._call("tags", deadline.left(), after=after, count=wanted)
            found += map(messages.tag_of, page["tags"])
            after = page["after"]
            if after is None:
                break
        return found

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        deadline = CallDeadline(timeout)
        arguments = {
            "n": n,
            "reason": purpose.reason,
            "application": purpose.application,
            "born": purpose.born,
            "id": purpose.id or fresh_version(),
            "at_least": at_least,
            "exact": exact,
        }
        try:
            found = self._call("reserve", timeout, tag, **arguments)
        except Lost:
            found = self._call("reserve", deadline.left(), tag, **arguments, again=True)
        return messages.reservation(found)

    def hand_back_checked(
        self,
        held: Sequence[Reservation],
        highs: Mapping[str, int],  # noqa: ARG002 - the server derives them
        rest: int,
        *,
        timeout: float,
    ) -> bool:
        last = held[-1]
        ids = [each.entry for each in held]
        return bool(self._call("hand_back", timeout, last.tag.tag, entries=ids, version=last.version, used=rest))

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        given = {"settings": dict(changes.settings), "raise_to": changes.raise_to, "seen": changes.seen}
        return messages.live(self._call("configure", timeout, tag, **given))

    def delete(self, tag: str, *, timeout: float) -> Tag:
        return messages.live(self._call("delete", timeout, tag))

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        if below is not None:
            check_argument("below", below)
        return bool(self._call("halt", timeout, tag, below=below))

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        check_argument("at_least", at_least)
        return messages.live(self._call("recover", timeout, tag, at_least=at_least))

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        check_argument("newest", newest)
        return messages.entries(self._call("ledger", timeout, tag, newest=newest))

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        check_argument("count", count, 1)
        return messages.page(self._call("segments", timeout, tag, beyond=beyond, upward=upward, count=count))

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        return messages.entries(self._call("entries", timeout, tag, ids=list(ids)))

    def prune(self, *, before: int, timeout: float) -> Pruned:  # noqa: ARG002 - nothing is asked here
        """Do nothing: the server prunes its own store."""
        check_argument("before", before)
        return Pruned(0, EVERY / 1000)

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """Do as `Store.batch`. Calls that read the same of several tags are one request."""
        reads = alike(calls)
        if len(reads) < 2:  # noqa: PLR2004 - one call is no batch
            return in_turn(self, calls, timeout)
        name, decode = READS[type(reads[0])]
        options = {each: value for each, value in asdict(reads[0]).items() if each != "tag"}
        found = self._call("batch", timeout, read=name, tags=[each.tag for each in reads], options=options)
        return [messages.error_of(each["error"]) if "error" in each else decode(each["result"]) for each in found]

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:
        return {str(tag): int(top) for tag, top in self._call("witnessed", timeout).items()}

    def examine(self, *, timeout: float) -> StoreFacts:
        return StoreFacts(kind="issuer", version=str(self._call("version", timeout)), lasting=True)

    def upgrade(self, *, timeout: float) -> Upgrade:
        """Do nothing but create the store's id: the server upgrades its own store."""
        self.made_id(timeout=timeout)
        return Upgrade(1, 1)

    def after_fork(self) -> None:
        self._channel.forget()

    def close(self) -> None:
        self._channel.close()
