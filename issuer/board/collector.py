"""The collector: reads all tags, and what Redis knows of them, into the file of a board.

It reads a page of tags at a time, and spends at most a tenth of its time on it. In between, it reads the tags in use
again, every second. While nobody looks at the board, it reads a page every 30 seconds. The ledger of a tag is read only
if the tag's record has changed.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from secrets import token_hex
from typing import Any, Final

from issuer.advice import command_line
from issuer.api.blocking import Issuer
from issuer.board.file import BoardFile
from issuer.board.health import Health
from issuer.board.rows import TAIL, TailEntry, damaged, row_of
from issuer.clock import Deadline, monotonic
from issuer.core.parts import is_machine
from issuer.core.record import PAGE, identity
from issuer.core.scheme_record import countable
from issuer.core.steps import ask, pipeline, public, send
from issuer.engine.calls import EngineCalls
from issuer.errors import IssuerError
from issuer.gateway.keys import login_key
from issuer.gateway.server_commands import set_once, value_of
from issuer.gateway.tag_scripts import Hash, read_hash
from issuer.threads import finished
from issuer.views import advised
from issuer_persistence.errors import Corrupt
from issuer_persistence.reads import ReadLedger, ReadTag
from issuer_persistence.records import Tag, now_ms

log = logging.getLogger("issuer.board")

#: Seconds between two looks.
EVERY: Final = 1.0
#: A board is watched if somebody has looked at it in the last ms.
WATCHED: Final = 20_000
#: Seconds between two looks, and between two pages, while nobody watches.
UNWATCHED: Final = 30.0
#: A walk over all tags spends at most this share of the time, so that it takes nothing from draws.
SHARE: Final = 0.1
#: Most tags in use that are read again at each look.
ACTIVE: Final = 200
#: Most hashes that a client of a server reads with one request: their names fit into a request.
RELAYED: Final = 50
#: Longest duration of a request to Redis or the store, in seconds.
WITHIN: Final = 1.0
#: Length of the secret for logins, in hexadecimal digits.
SECRET: Final = 64
#: Seconds for which the findings of `doctor` are new enough. It also takes at most SHARE of the time.
DOCTOR_FOR: Final = 60.0


class Collector:
    """Keeps the file of a board up to date. One process of a server runs it."""

    def __init__(
        self, engine: EngineCalls[Any], file: BoardFile, *, logins: bool = True, within: float = WITHIN
    ) -> None:
        """Create the object.

        Args:
            engine: Engine of the issuer whose tags are read.
            file: File of the board.
            logins: Whether the board is that of a server to which operators log in.
            within: Longest duration of a request to Redis or the store, in seconds.
        """
        self._engine, self._file, self._within = engine, file, within
        self._health = Health(has_redis=engine.config.redis is not None)
        #: Why the store did not answer at the last look. None if it did.
        self.store_error: IssuerError | None = None
        self._store_id = ""
        self._after: str | None = None
        self._walk = 1
        #: Whether the tags are more than a page. If they are not, each page has all of them.
        self._many = False
        self._due = 0.0
        #: Whether the secret for logins is that of all servers. Without a Redis of its own, a server has its own one.
        self._agreed = not logins or engine.config.redis is None or engine.config.relay is not None
        self._examining = threading.Lock()
        #: When `doctor` may run again, on the monotonic clock.
        self._doctor_due = 0.0

    async def look(self) -> None:
        """Look once: at Redis and the store, at the tags in use, and at the next page of tags if it is due."""
        watched = now_ms() - self._file.wished("watched") < WATCHED
        if not watched and monotonic() < self._due:
            return
        began = monotonic()
        await self._look_at_servers()
        self._file.note("health", self._health.content())
        if not (self._agreed or self._health.redis):
            await self._agree()
        if not self._health.store:
            due = monotonic() >= self._due
            if self._many or not due:
                await self._look_at_active()
            if due:
                await self._look_at_page()
                took = monotonic() - began
                self._due = began + (max(EVERY, took / SHARE) if watched and self._health.complete else 0.0)
        if not watched:
            self._due = began + (UNWATCHED if self._health.complete or self._health.store else 0.0)
        self._health.states, self._health.shortest = self._file.states(), self._file.shortest()
        await self._look_at_processes()
        self._file.note("health", self._health.content())

    @property
    def hurries(self) -> bool:
        """Whether not all tags were read yet, although the store answers."""
        return not (self._health.complete or self._health.store)

    async def _look_at_servers(self) -> None:
        health, care = self._health, self._engine.care
        self.store_error = store = None
        try:
            self._store_id = await self._engine.run(public(identity(), None), Deadline(self._within), None)
            await anext(care.tag_pages(self._within, count=1), None)  # the id may be known without the server
        except IssuerError as error:
            self.store_error = store = error
        redis = await (care.redis_ready(self._within) if self._engine.config.relay is None else self._relayed(store))
        health.store, health.store_code, health.store_since = _trouble(store, health.store, health.store_since)
        health.redis, health.redis_code, health.redis_since = _trouble(redis, health.redis, health.redis_since)

    async def _agree(self) -> None:
        """Use the same secret as the other servers with this Redis, so that a login is valid at all of them.

        A login also depends on the hash of its token, so the secret alone is not enough to forge one.
        """
        key = login_key(self._engine.config.settings.prefix)
        try:
            await self._engine.run(send(set_once(key, token_hex(SECRET // 2))), Deadline(self._within), None)
            secret = await self._engine.run(send(value_of(key)), Deadline(self._within), None)
        except IssuerError as error:  # the server's own secret is used
            log.debug("the servers could not agree on a secret for logins: %s", error)
            return
        if len(secret) == SECRET:
            self._file.note("secret", secret)
            self._agreed = True

    async def _relayed(self, error: IssuerError | None) -> IssuerError | None:
        """Return why a server does not read its Redis for this client. `error`: why it does not read its store."""
        rows, _ = self._file.page("name", "", "", 0, 1)
        key = self._engine.config.hash_key(rows[0].tag) if rows else None
        if key is None:  # nothing can be read yet
            return error
        try:
            await self._engine.run(send(read_hash(key)), Deadline(self._within), None)
        except IssuerError as failed:
            return failed
        return None

    async def _look_at_active(self) -> None:
        tags = self._file.active(ACTIVE)
        batch = await self._engine.care.ended({tag: ask(ReadTag(tag)) for tag in tags}, self._within, probe=False)
        await self._read([each for each in batch.results.values() if each is not None and not each.deleted])

    async def _look_at_page(self) -> None:
        try:
            page: list[Tag | Corrupt] = await anext(self._engine.care.tag_pages(self._within, after=self._after), [])
        except IssuerError as error:
            log.debug("the board could not read a page of tags: %s", error)
            return
        await self._read(page)
        self._many = len(page) == PAGE or self._after is not None
        self._after = page[-1].tag if len(page) == PAGE else None
        if self._after is None:
            self._file.forget(self._walk)
            self._walk, self._health.complete = self._walk + 1, True

    async def _read(self, records: Sequence[Tag | Corrupt]) -> None:
        """Put the rows of these records, which were just read."""
        sound = [each for each in records if isinstance(each, Tag) and not is_machine(each)]
        before = self._file.rows([each.tag for each in sound])
        counted = [each for each in sound if countable(each.scheme)]
        hashes = await self._hashes([each.tag for each in counted])
        moved = [each.tag for each in counted if each.tag not in before or before[each.tag].version != each.version]
        steps = {tag: ask(ReadLedger(tag, TAIL)) for tag in moved}
        ledgers = await self._engine.care.ended(steps, self._within, probe=False)
        sound = await self._again(sound, hashes)
        now = now_ms()
        rows = [damaged(each, now) for each in records if isinstance(each, Corrupt)]
        for record in sound:
            known = before.get(record.tag)
            error = ledgers.errors.get(record.tag)
            tail = known.tail if known is not None else ()
            if (ledger := ledgers.results.get(record.tag)) is not None:
                tail = [TailEntry(each.time, each.low, each.high) for each in ledger]
            row = row_of(record, tail, hashes.get(record.tag), known, store_id=self._store_id, now=now)
            rows.append(row if error is None else row.failed(error))
        self._file.put(rows, self._walk)

    async def _again(self, records: Sequence[Tag], hashes: Mapping[str, Hash]) -> list[Tag]:
        """Return the records, and read those anew whose hash is ahead of them: a segment may have been loaded since."""
        ahead = [each.tag for each in records if each.tag in hashes and hashes[each.tag].top > each.max]
        batch = await self._engine.care.ended({tag: ask(ReadTag(tag)) for tag in ahead}, self._within, probe=False)
        return [batch.results.get(each.tag) or each for each in records]

    async def _hashes(self, tags: Sequence[str]) -> dict[str, Hash]:
        """Return the Redis hashes of these tags. If Redis does not answer, return {}."""
        config, found = self._engine.config, list[Any]()
        keys = [name for name in map(config.hash_key, tags) if name is not None]
        if self._health.redis:
            return {}
        size = PAGE if config.relay is None else RELAYED
        try:
            for first in range(0, len(keys), size):
                reads = pipeline([read_hash(each) for each in keys[first : first + size]])
                found += await self._engine.run(reads, Deadline(self._within), None)
        except IssuerError as error:
            log.debug("the board could not read the hashes of the tags: %s", error)
        return {tag: each for tag, each in zip(tags, found, strict=False) if isinstance(each, Hash)}

    async def _look_at_processes(self) -> None:
        """Note what the processes have reported."""
        if self._health.redis:
            return
        try:
            told = await self._engine.chronicle.read(self._within)
        except IssuerError as error:
            log.debug("the board could not read the chronicle: %s", error)
            return
        recent = now_ms() - 30_000
        self._health.waiting = sum(each.waiting for each in told.processes if each.seen > recent)
        content = {
            "happenings": list(map(asdict, told.happenings)),
            "acts": list(map(asdict, told.acts)),
            "processes": list(map(asdict, told.processes)),
        }
        self._file.note("chronicle", content)

    def examine(self) -> None:
        """Run `doctor` if somebody wants to see its findings, in a thread of its own: with many tags it takes long."""
        wanted = now_ms() - self._file.wished("doctor") < WATCHED
        if wanted and monotonic() >= self._doctor_due and self._examining.acquire(blocking=False):
            threading.Thread(target=self._examine, daemon=True).start()

    def _examine(self) -> None:
        began = monotonic()
        try:
            found = finished(lambda: self._engine.care.doctor(None, None))
            self._file.note("doctor", [advised(each, command_line) for each in found])
        except (IssuerError, sqlite3.Error) as error:
            log.debug("the board could not run doctor: %s", error)
        finally:
            self._doctor_due = monotonic() + max(DOCTOR_FOR, (monotonic() - began) / SHARE)
            self._examining.release()


def _trouble(error: IssuerError | None, before: str, since: int) -> tuple[str, str, int]:
    """Return the text and the code of an error, and since when it lasts."""
    if error is None:
        return "", "", 0
    return str(error), error.code, since if before else now_ms()


def collect(issuer: Issuer, file: BoardFile, stop: threading.Event) -> None:
    """Keep the file up to date until `stop` is set."""
    collector, trouble = Collector(issuer.engine, file), ""
    pause = 0.0
    while not stop.wait(pause):
        began, pause = monotonic(), EVERY
        try:
            finished(collector.look)
            if collector.hurries:  # spend half of the time on it
                pause = min(EVERY, monotonic() - began)
            collector.examine()
        except (IssuerError, sqlite3.Error) as error:
            if str(error) != trouble:
                log.warning("the console shows older values: %s", error)
            trouble = str(error)
        else:
            trouble = ""
