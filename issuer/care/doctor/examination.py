"""Gather the facts for `doctor`, and run its checks. Only the gathering sends requests. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from issuer.care.discrepancies import Turns
from issuer.care.doctor import redis, store, tags
from issuer.care.doctor.findings import (
    ClockDifference,
    DrawFacts,
    Facts,
    Finding,
    Level,
    ReplicaFacts,
    ServerFacts,
    TagFacts,
)
from issuer.care.inspection import RATE_FROM, WASTE_FROM
from issuer.core import arithmetic
from issuer.core.batch import TagBatch
from issuer.core.record import PAGE
from issuer.core.requests import whole
from issuer.core.steps import Server, Steps, ask, masters, public, send, visit
from issuer.errors import FenceError, IssuerError, RedisUnavailable, StoreUnavailable
from issuer.gateway import server_commands, tag_scripts
from issuer.gateway.keys import due_channel, has_blanks
from issuer_persistence.facts import StoreFacts
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.reads import ReadLedger
from issuer_persistence.records import HIGHEST, Tag, now_ms

T = TypeVar("T")

#: All checks. Each check takes the facts and yields findings. A check that does not apply yields none, for example a
#: check of Redis if there is no Redis.
CHECKS = (*redis.CHECKS, *store.CHECKS, tags.looked_at, *tags.CHECKS)

#: Levels of findings, the worst first.
LEVELS: tuple[Level, ...] = ("weak", "advice", "unknown", "ok")

#: How many findings of the same check and level about tags are listed. Of further ones, only the count is reported.
MOST_FINDINGS = 1000

#: How many tags are examined closely at once. Up to 100 ledger entries of each tag are then in memory.
TOGETHER = 100

#: How many tags are examined closely by default. 1000 tags take a second or two.
MOST_TAGS = 1000

#: Settings of Redis that are read with CONFIG GET, which may be denied. All other facts about Redis are in INFO.
SETTINGS = ("save", "min-replicas-to-write", "active-replica")


class Examination:
    """Gathers `facts` in rounds. A round is a group of requests. The caller's timeout applies to each round.

    If a request fails, the error is recorded as a fact.
    """

    def __init__(
        self,
        facts: Facts,
        key: Callable[[str], str],
        *,
        most: int | None,
        progress: Callable[[int, int], object] | None,
    ) -> None:
        """Prepare an examination.

        Args:
            facts: The facts that are known already, such as the settings. The examination adds the others.
            key: Function that returns the Redis key of a tag.
            most: How many tags to examine closely, 0..2^63-1. None means 1000.
            progress: Function that is called after each tag with the number of tags examined and the total.
        """
        self.facts = facts
        self._key = key
        self._most = MOST_TAGS if most is None else whole(most, "most", 0, HIGHEST)
        self._progress = progress or (lambda *_: None)
        self._masters: list[Server] = []
        #: The tags to examine closely, the most recently used first: for each, its negative timestamp and its name.
        self._chosen: list[tuple[int, str]] = []
        #: Last tag of a page, if there are more pages.
        self._after: str | None = None

    def rounds(self) -> Iterator[Steps[None]]:
        """Yield the rounds. The caller must run each round before it takes the next one, which uses its facts.

        The tags are read twice by pages, so that only one page of records is in memory: first to find the most recently
        used tags, and then to examine the tags.
        """
        yield self._look_at_store()
        while self.facts.store_error is None:
            yield self._choose()
            if self._after is None:
                break
        if self.facts.redis is not None:
            yield self._find_masters()
            for server in self._masters:
                yield self._look_at_server(server)
            if any(server.info is not None for server in self.facts.servers):
                yield self._draw()
        yield from self._examine_tags()

    def _examine_tags(self) -> Iterator[Steps[None]]:
        """Yield the rounds that examine the tags."""
        facts, chosen, done = self.facts, {tag for _, tag in self._chosen}, 0
        facts.left_out = facts.there > len(chosen)
        while facts.store_error is None:
            yield self._read_records()
            near = [record for record in facts.records if record.tag in chosen]
            for first in range(0, len(near), TOGETHER):
                page = near[first : first + TOGETHER]
                batch = TagBatch({record.tag: self._look_at_tag(record) for record in page})
                while batch.pending:
                    yield batch.go_on()
                found = [batch.results[record.tag] for record in page]
                facts.tags += [each for each in found if each is not None]
                for _ in page:
                    done += 1
                    self._progress(done, len(chosen))
            self._end_page()
            if self._after is None:
                break

    def _look_at_store(self) -> Steps[None]:
        facts = self.facts
        try:
            facts.store_id = yield from public(ask(lambda store, left: store.store_id(timeout=left)), None)
            before = now_ms()
            seen: StoreFacts = yield from public(ask(lambda store, left: store.examine(timeout=left)), None)
            facts.store_clock = None if seen.time is None else _clock(seen.time, before, now_ms())
            facts.store_facts = seen
            # A journal with higher numbers than the store means that the store has lost reservations. So the journal is
            # read before the tags: then a reservation between the two reads cannot look lost.
            facts.witnessed = yield from public(ask(lambda store, left: store.witnessed(timeout=left)), None)
        except IssuerError as error:
            facts.store_error = error

    def _choose(self) -> Steps[None]:
        """Read a page of the tags' records, and add to `_chosen` those that were used most recently."""
        page = yield from self._page()
        self.facts.there += len(page)
        self._chosen += [(-record.timestamp, record.tag) for record in page]
        self._chosen = sorted(self._chosen)[: self._most]

    def _read_records(self) -> Steps[None]:
        """Read a page of the tags' records for the checks."""
        facts = self.facts
        facts.records = yield from self._page()
        for bare in [record.tag.strip() for record in facts.records if has_blanks(record.tag)]:
            found = yield from _tried(ask(lambda store, left: store.get(bare, timeout=left)))  # noqa: B023 - called at once
            if isinstance(found, Tag) and not found.deleted:
                facts.bare.add(bare)

    def _page(self) -> Steps[list[Tag]]:
        """Return the next page of the tags' records. After an error of the store, the page is empty."""
        after = self._after
        page = yield from _tried(ask(lambda store, left: store.tags(after=after, count=PAGE, timeout=left)))
        if isinstance(page, IssuerError):
            self.facts.store_error, page = page, []
        self._after = page[-1].tag if len(page) == PAGE else None
        return page

    def _end_page(self) -> None:
        """Check the tags of the page, keep the findings, and drop the facts about these tags."""
        facts = self.facts
        for check in CHECKS:
            for finding in sorted(check(facts) if check in tags.CHECKS else (), key=_tag):
                kept = facts.kept.setdefault((finding.check, finding.level), [])
                if len(kept) < MOST_FINDINGS:
                    kept.append(finding)
                else:
                    facts.more[finding.check, finding.level] += 1
        lost = [record for record in facts.records if facts.witnessed.get(record.tag, 0) > record.max]
        facts.lost = (facts.lost + lost)[: store.MOST_LOST]
        facts.checked += len(facts.records)
        facts.examined += sum(tag.error is None and (facts.redis is None or tag.hash is not None) for tag in facts.tags)
        if facts.store_error is None and self._after is None:
            facts.there = facts.checked  # tags may have been created or deleted since they were counted
        facts.records, facts.tags, facts.bare = [], [], set()

    def _find_masters(self) -> Steps[None]:
        try:
            self._masters = yield from masters()
        except IssuerError as error:
            self.facts.redis_error = error

    def _look_at_server(self, server: Server) -> Steps[None]:
        facts = ServerFacts(name=_name(server) or self.facts.redis or "")
        info = yield from _tried(visit(server, server_commands.info()))
        if isinstance(info, IssuerError):
            self.facts.servers.append(replace(facts, error=info))
            return
        settings: dict[str, str | None] = {}
        for name in SETTINGS:
            value = yield from _tried(visit(server, server_commands.setting(name)))
            if not isinstance(value, IssuerError):
                settings[name] = value
        before = now_ms()
        time = yield from _tried(visit(server, server_commands.server_time()))
        denied = time if isinstance(time, IssuerError) else None
        node = (yield from _tried(visit(server, server_commands.NODE_ID))) if info.get("cluster_enabled") == "1" else ""
        clock = None if isinstance(time, IssuerError) else _clock(time, before, now_ms())
        seen = []
        for replica in server_commands.replicas(info):
            seen.append((yield from _replica(replica, info)))  # noqa: PERF401 - a comprehension can't yield
        self.facts.servers.append(
            replace(
                facts,
                info=info,
                settings=settings,
                clock=clock,
                clock_error=denied,
                node_error=node if isinstance(node, IssuerError) else None,
                replicas=tuple(seen),
            )
        )

    def _draw(self) -> Steps[None]:
        # A test draw. No tag has the name "", so the hash doesn't exist, and no number is used up.
        key = self._key("")
        drawn = yield from _tried(send(tag_scripts.draw(key, 1, 0)))
        if isinstance(drawn, IssuerError):
            self.facts.draw = DrawFacts(error=drawn)
        else:
            self.facts.draw = DrawFacts(status=drawn.status)
            if drawn.status != "empty":
                return
        reported = yield from _tried(send(server_commands.publish(due_channel(self.facts.settings.prefix), key)))
        if isinstance(reported, FenceError):
            self.facts.report_error = reported
        # An error in a script does not name the command that was denied. So each command is also tried by itself.
        for trial, due in server_commands.trials(key):
            answer = yield from _tried(send(trial))
            if isinstance(answer, IssuerError) and not (due and due in str(answer)):
                self.facts.draw = DrawFacts(error=answer)
                return

    def _look_at_tag(self, record: Tag) -> Steps[TagFacts | None]:
        """Return the facts about a tag. None if the store was unavailable for another tag already.

        So the error is reported for one tag only.
        """
        tag, facts = record.tag, self.facts
        if isinstance(facts.store_error, StoreUnavailable):
            return None
        ledger = yield from _tried(ask(ReadLedger(tag, WASTE_FROM)), tag)
        if isinstance(ledger, StoreUnavailable):
            if isinstance(facts.store_error, StoreUnavailable):
                return None
            facts.store_error = ledger
        if isinstance(ledger, IssuerError):
            return TagFacts(record=record, error=ledger)
        telling = arithmetic.conclusive(ledger, record.segment, WASTE_FROM)
        newest = ledger[:RATE_FROM]
        rate = arithmetic.rate(newest, now_ms()) if telling else None
        rated_for = (newest[0].time - newest[-1].time) / 1000 if newest else None
        turns = Turns()
        both = next(filter(None, map(turns.found, ledger)), None)
        seen = TagFacts(record=record, rate=rate, rated_for=rated_for, hashes=both)
        if facts.redis is None or not self._reached():
            return seen
        return (yield from self._look_at_hash(seen, ledger))

    def _look_at_hash(self, seen: TagFacts, ledger: Sequence[LedgerEntry]) -> Steps[TagFacts]:
        """Add the facts about the tag's hash in Redis."""
        tag = seen.record.tag
        hash = yield from _tried(send(tag_scripts.read_hash(self._key(tag))), tag)
        if isinstance(hash, RedisUnavailable):
            if not self._reached():  # another tag has recorded the error, as tags are examined at the same time
                return seen
            self.facts.redis_error = hash
        if isinstance(hash, IssuerError):
            return replace(seen, error=hash)
        if hash.cur is None or any((entry.low, entry.high) == (hash.cur, hash.max) for entry in ledger):
            # No number was drawn from the current segment yet. So Redis may have lost earlier segments, for example by
            # a FLUSHALL. The rate would be too high: it counts each segment as used when the next is reserved.
            seen = replace(seen, rate=None)
        store_max = None
        if hash.top > seen.record.max:
            store_max = yield from self._max_now(tag)
        return replace(seen, hash=hash, store_max=store_max)

    def _max_now(self, tag: str) -> Steps[int | None]:
        """Read the store's `max` again, and return it. None if it cannot be read.

        It is read after the hash. So it includes all segments that the hash had, unless the store has lost changes.
        """
        now = yield from _tried(ask(lambda store, left: store.get(tag, timeout=left)), tag)
        return None if now is None or isinstance(now, IssuerError) else now.max

    def _reached(self) -> bool:
        """Return True if Redis has answered so far.

        If it has not, the hashes are not read, because each read would wait for the whole timeout.
        """
        reached = any(server.info is not None for server in self.facts.servers)
        return reached and self.facts.redis_error is None


def _tried(steps: Steps[T], tag: str | None = None) -> Steps[T | IssuerError]:
    """Return the result of the steps. If they raise an IssuerError, return the error instead."""
    try:
        return (yield from public(steps, tag))
    except IssuerError as error:
        return error


def _replica(parts: Mapping[str, str], master: Mapping[str, str]) -> Steps[ReplicaFacts]:
    """Return the facts about a replica. `parts`: its fields in the master's INFO. `master`: the master's whole INFO."""
    server = parts.get("ip", ""), _number(parts.get("port"))
    info = yield from _tried(visit(server, server_commands.info()))
    return ReplicaFacts(
        name=_name(server),
        state=parts.get("state", ""),
        lag=_number(parts.get("lag")),
        behind=max(0, _number(master.get("master_repl_offset")) - _number(parts.get("offset"))),
        read_only=None if isinstance(info, IssuerError) else info.get("slave_read_only", "1") == "1",
    )


def _name(server: Server) -> str:
    host, port = server
    return f"{host}:{port}" if host else ""


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else 0


def _clock(server: int, before: int, after: int) -> ClockDifference:
    """Compare a server's time with this machine's time before the request and after the reply. All times are in ms."""
    return ClockDifference(server - (before + after) // 2, (after - before + 1) // 2)


def _tag(finding: Finding) -> str:
    return finding.tag or ""


def judge(facts: Facts) -> list[Finding]:
    """Run all checks, and return their findings, the worst first. Findings of one check are sorted by tag."""
    found = [finding for check in CHECKS for finding in sorted(check(facts), key=_tag)]
    for (check, level), kept in facts.kept.items():
        found += kept
        if more := facts.more[check, level]:
            what = f"further tags with the same finding: {more:,}"
            why = f"At most {MOST_FINDINGS:,} findings of a check are listed."
            do = "Resolve the listed findings, then run doctor again."
            found.append(Finding(check, level, "tags", what, why, do))
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
