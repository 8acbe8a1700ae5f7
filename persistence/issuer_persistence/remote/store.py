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
from issuer_persistence.remote.channel import HTTPChannel, Lost

T = TypeVar("T")

#: Path of the route that makes the calls.
PATH = "/v1/store"

#: Most tags, ledger entries or ids in a request or a reply.
PAGE = 1000

#: Most calls of a batch, and most ledger entries that each of them reads. The names of the tags fit into a request: a
#: server accepts 64 KiB.
BATCH = 100

#: The calls that a batch can have: their names in a request, and functions that read their results.
READS: Mapping[type[Read[Any]], tuple[str, Callable[[Any], Any]]] = {
    ReadTag: ("get", messages.live_or_none),
    ReadLedger: ("ledger", messages.entries),
    ReadSegments: ("segments", messages.page),
}


class RemoteStore(Store):
    """The store of another issuer, through its server. The server must allow the scope `reserve` for the tags."""

    def __init__(self, channel: HTTPChannel) -> None:
        self._channel = channel

    @classmethod
    def open(cls, url: str) -> RemoteStore:
        return cls(HTTPChannel(url))

    @property
    def url(self) -> str:
        return self._channel.url

    def _call(self, name: str, timeout: float, decode: Callable[[Any], T], tag: str = "", **arguments: Any) -> T:
        """Make a call at the server. Return its result, which `decode` reads. Raise its error."""
        content = {"call": name, "tag": tag, "arguments": arguments, "timeout": timeout}
        found = self._channel.post(PATH, content, timeout)
        try:
            if "error" not in found:
                return decode(found["result"])
            error = messages.error_of(found["error"])
        except (LookupError, TypeError, ValueError, AttributeError):
            raise Unconfirmed(f"{self.url}: the reply to {name} is not one of this version of the issuer") from None
        raise error

    def store_id(self, *, timeout: float) -> str:
        return self._call("store_id", timeout, messages.identity)

    def made_id(self, *, timeout: float) -> str:
        return self._call("made_id", timeout, messages.identity)

    def create_many(self, settings: Mapping[str, TagSettings], *, timeout: float) -> list[Tag]:
        wanted = {tag: messages.settings_sent(each) for tag, each in settings.items()}
        return self._call("create_many", timeout, lambda found: [*map(messages.live, found)], settings=wanted)

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        return self._call("get", timeout, messages.live_or_none, tag)

    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag | Corrupt]:
        check_argument("count", count, 1)
        deadline, tags = CallDeadline(timeout), list[Tag | Corrupt]()

        def read(found: Any) -> str | None:
            tags.extend(map(messages.tag_of, found["tags"]))
            return None if found["after"] is None else str(found["after"])

        while len(tags) < count:
            # The server shows only the tags of the token. `after` is the last one that it has looked at.
            after = self._call("tags", deadline.left(), read, after=after, count=min(count - len(tags), PAGE))
            if after is None:
                break
        return tags

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        deadline, entry = CallDeadline(timeout), purpose.id or fresh_version()
        arguments = {
            "n": n,
            "reason": purpose.reason,
            "application": purpose.application,
            "born": purpose.born,
            "id": entry,
            "at_least": at_least,
            "exact": exact,
        }

        def read(found: Any) -> Reservation:
            return messages.reservation(found, tag, entry)

        try:
            return self._call("reserve", timeout, read, tag, **arguments)
        except Lost:
            return self._call("reserve", deadline.left(), read, tag, **arguments, again=True)

    def hand_back_checked(
        self,
        held: Sequence[Reservation],
        highs: Mapping[str, int],  # noqa: ARG002 - the server derives them
        rest: int,
        *,
        timeout: float,
    ) -> bool:
        last = held[-1]
        given = {"entries": [each.entry for each in held], "version": last.version, "used": rest}
        return self._call("hand_back", timeout, messages.flag, last.tag.tag, **given)

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        given = {"settings": dict(changes.settings), "raise_to": changes.raise_to, "seen": changes.seen}
        return self._call("configure", timeout, messages.live, tag, **given)

    def delete(self, tag: str, *, timeout: float) -> Tag:
        return self._call("delete", timeout, messages.live, tag)

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        if below is not None:
            check_argument("below", below)
        return self._call("halt", timeout, messages.flag, tag, below=below)

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        check_argument("at_least", at_least)
        return self._call("recover", timeout, messages.live, tag, at_least=at_least)

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        check_argument("newest", newest)
        deadline, found, beyond = CallDeadline(timeout), list[LedgerEntry](), None
        while len(found) < newest:
            page = self.segments(tag, beyond=beyond, count=min(newest - len(found), PAGE), timeout=deadline.left())
            for damaged in page.damaged:
                raise damaged
            found, beyond = found + page.entries, page.last
            if beyond is None:
                break
        return found

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        check_argument("count", count, 1)
        return self._call("segments", timeout, messages.page, tag, beyond=beyond, upward=upward, count=count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        return self._entries("entries", tag, [*ids], timeout)

    def own(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        return self._entries("own", tag, [*ids], timeout)

    def _entries(self, name: str, tag: str, ids: list[str], timeout: float) -> list[LedgerEntry]:
        deadline, found = CallDeadline(timeout), list[LedgerEntry]()
        for first in range(0, len(ids), PAGE):
            found += self._call(name, deadline.left(), messages.entries, tag, ids=ids[first : first + PAGE])
        return found

    def prune(self, *, before: int, timeout: float) -> Pruned:  # noqa: ARG002 - nothing is asked here
        """Do nothing: the server prunes its own store."""
        check_argument("before", before)
        return Pruned(0, EVERY / 1000)

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """Do as `Store.batch`. Calls that read the same of several tags are one request."""
        reads = alike(calls)[:BATCH]
        if len(reads) < 2 or getattr(reads[0], "newest", 0) > BATCH:  # noqa: PLR2004 - one call is no batch
            return in_turn(self, calls, timeout)
        name, decode = READS[type(reads[0])]
        options = {each: value for each, value in asdict(reads[0]).items() if each != "tag"}

        def read(found: Any) -> list[T | StoreError]:
            if not 0 < len(found) <= len(reads):
                raise ValueError("other results than calls")
            return [messages.error_of(each["error"]) if "error" in each else decode(each["result"]) for each in found]

        return self._call("batch", timeout, read, read=name, tags=[each.tag for each in reads], options=options)

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:
        return self._call("witnessed", timeout, messages.tops)

    def examine(self, *, timeout: float) -> StoreFacts:
        return self._call("examine", timeout, messages.facts)

    def upgrade(self, *, timeout: float) -> Upgrade:
        """Do nothing but create the store's id: the server upgrades its own store."""
        self.made_id(timeout=timeout)
        return Upgrade(1, 1)

    def after_fork(self) -> None:
        self._channel.forget()

    def close(self) -> None:
        self._channel.close()
