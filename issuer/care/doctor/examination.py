"""Gather the facts for `doctor`, and run its checks. Only the gathering sends requests. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from issuer.care.discrepancies import UNSEEN, damaged
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
from issuer.care.verification import Audit
from issuer.core import arithmetic
from issuer.core.batch import TagBatch
from issuer.core.record import PAGE, identity, page_of_tags
from issuer.core.steps import Server, Steps, ask, masters, public, send, silence, visit
from issuer.errors import FenceError, IssuerError, RedisUnavailable, StoreUnavailable, UnknownTag
from issuer.gateway import server_commands, tag_scripts
from issuer.gateway.keys import due_channel, has_blanks
from issuer_persistence.errors import Corrupt
from issuer_persistence.facts import StoreFacts
from issuer_persistence.records import Tag, now_ms

T = TypeVar("T")

#: All checks. Each check takes the facts and yields findings. A check that does not apply yields none, for example a
#: check of Redis if there is no Redis.
CHECKS = (*redis.CHECKS, *store.CHECKS, tags.looked_at, *tags.CHECKS)

#: Levels of findings, the worst first.
LEVELS: tuple[Level, ...] = ("weak", "advice", "unknown", "ok")

#: How many findings of the same check and level about tags are listed. Of further ones, only the count is reported.
MOST_FINDINGS = 1000

#: Settings of Redis that are read with CONFIG GET, which may be denied. All other facts about Redis are in INFO.
SETTINGS = ("save", "min-replicas-to-write", "active-replica", redis.NODE_TIMEOUT)


class Examination:
    """Gathers `facts` in rounds. A round is a group of requests. The caller's timeout applies to each round.

    If a request fails, the error is recorded as a fact.
    """

    def __init__(self, facts: Facts, key: Callable[[str], str], progress: Callable[[int, int], object] | None) -> None:
        """`progress`: function that is called after each tag with the number of tags examined and the total."""
        self.facts = facts
        self._key = key
        self._progress = progress or (lambda *_: None)
        self._masters: list[Server] = []
        #: Last tag of a page, if there are more pages.
        self._after: str | None = None

    def rounds(self) -> Iterator[Steps[None]]:
        """Yield the rounds. The caller must run each round before it takes the next one, which uses its facts.

        The tags are read twice by pages, so that only one page of records is in memory: first to count them, and then
        to examine them.
        """
        facts = self.facts
        yield self._look_at_store()
        while facts.store_error is None:
            yield self._count()
            if self._after is None:
                break
        if facts.redis is not None:
            yield self._find_masters()
            for server in self._masters:
                yield self._look_at_server(server)
            if facts.reached:
                yield self._draw()
        while facts.store_error is None:
            yield self._read_records()
            batch = TagBatch({record.tag: self._look_at_tag(record) for record in facts.records}, probe=False)
            while batch.pending:
                yield batch.go_on()
            self._end_page(batch)
            if self._after is None:
                break

    def _look_at_store(self) -> Steps[None]:
        facts = self.facts
        try:
            facts.store_id = yield from public(identity(), None)
            before = now_ms()
            seen: StoreFacts = yield from public(ask(lambda store, left: store.examine(timeout=left)), None)
            facts.store_clock = None if seen.time is None else _clock(seen.time, before, now_ms())
            facts.store_facts = seen
        except IssuerError as error:
            facts.store_error = error

    def _count(self) -> Steps[None]:
        self.facts.there += len((yield from self._page()))

    def _read_records(self) -> Steps[None]:
        facts = self.facts
        page = yield from self._page()
        facts.records = [each for each in page if isinstance(each, Tag)]
        facts.damaged = [damaged(each) for each in page if isinstance(each, Corrupt)]
        for bare in [record.tag.strip() for record in facts.records if has_blanks(record.tag)]:
            found = yield from _tried(ask(lambda store, left: store.get(bare, timeout=left)))  # noqa: B023 - called at once
            if isinstance(found, Tag) and not found.deleted:
                facts.bare.add(bare)

    def _page(self) -> Steps[Sequence[Tag | Corrupt]]:
        """Return the next page of the tags' records. After an error of the store, the page is empty."""
        page = yield from _tried(page_of_tags(self._after, PAGE))
        if isinstance(page, IssuerError):
            self.facts.store_error, page = page, []
        self._after = page[-1].tag if len(page) == PAGE else None
        return page

    def _look_at_tag(self, record: Tag) -> Steps[TagFacts]:
        facts = self.facts
        audit = Audit(record.tag, self._key(record.tag) if facts.reached else None, facts.store_id or "", record)
        found = yield from audit.whole()
        hash, ledger, rate = audit.hash, audit.newest, None
        unused = hash is not None and any((entry.low, entry.high) == (hash.cur, hash.max) for entry in ledger)
        # If no number was drawn from the current segment yet, Redis may have lost earlier segments, for example by a
        # FLUSHALL. The rate would be too high: it counts each segment as used when the next is reserved.
        lost = facts.reached and (hash is None or hash.cur is None or unused)
        newest = ledger[:RATE_FROM]
        if arithmetic.conclusive(ledger, record.segment, WASTE_FROM) and not lost:
            rate = arithmetic.rate(newest, now_ms())
        rated_for = (newest[0].time - newest[-1].time) / 1000 if newest else None
        return TagFacts(record=record, hash=hash, found=found, rate=rate, rated_for=rated_for)

    def _end_page(self, batch: TagBatch[TagFacts]) -> None:
        facts = self.facts
        gone = {tag for tag, error in batch.errors.items() if isinstance(error, UnknownTag)}
        facts.records = [record for record in facts.records if record.tag not in gone]
        facts.checked += len(facts.damaged)
        facts.examined += len(facts.damaged)
        for record in facts.records:
            error = batch.errors.get(record.tag)
            facts.tags.append(batch.results[record.tag] if error is None else TagFacts(record=record, error=error))
            if isinstance(error, StoreUnavailable):
                facts.store_error = error
            facts.checked += 1
            self._progress(facts.checked, max(facts.there, facts.checked))
        for check in CHECKS:
            for finding in sorted(check(facts) if check in tags.CHECKS else (), key=lambda finding: finding.tag or ""):
                kept = facts.kept.setdefault((finding.check, finding.level), [])
                if len(kept) < MOST_FINDINGS:
                    kept.append(finding)
                else:
                    facts.more[finding.check, finding.level] += 1
        for seen in facts.tags:
            silent = (RedisUnavailable(str(each.values["why"])) for each in seen.found if each.kind == UNSEEN)
            error = seen.error or next(silent, None)
            facts.left_out = facts.left_out or error
            facts.examined += error is None and (facts.redis is None or facts.reached)
        if facts.store_error is None and self._after is None:
            facts.there = facts.checked  # tags may have been created or deleted since they were counted
        facts.records, facts.tags, facts.bare = [], [], set()

    def _find_masters(self) -> Steps[None]:
        try:
            self._masters = yield from masters()
            self.facts.silence = yield from silence()
        except IssuerError as error:
            self.facts.redis_error = error

    def _look_at_server(self, server: Server) -> Steps[None]:
        facts = ServerFacts(name=_name(server) or self.facts.redis or "")
        self.facts.servers.append(facts)
        info = yield from _tried(visit(server, server_commands.info()))
        if isinstance(info, IssuerError):
            facts.error = info
            return
        facts.info, facts.settings = info, {}
        for name in SETTINGS:
            value = yield from _tried(visit(server, server_commands.setting(name)))
            if not isinstance(value, IssuerError):
                facts.settings[name] = value
        before = now_ms()
        time = yield from _tried(visit(server, server_commands.server_time()))
        if isinstance(time, IssuerError):
            facts.clock_error = time
        else:
            facts.clock = _clock(time, before, now_ms())
        if info.get("cluster_enabled") == "1":
            node = yield from _tried(visit(server, server_commands.NODE_ID))
            facts.node_error = node if isinstance(node, IssuerError) else None
        for replica in server_commands.replicas(info):
            facts.replicas = (*facts.replicas, (yield from _replica(replica, info)))

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


def _tried(steps: Steps[T], tag: str | None = None) -> Steps[T | IssuerError]:
    try:
        return (yield from public(steps, tag))
    except IssuerError as error:
        return error


def _replica(parts: Mapping[str, str], master: Mapping[str, str]) -> Steps[ReplicaFacts]:
    """Return the facts about a replica. `parts`: its fields in the master's INFO. `master`: the master's whole INFO."""
    server = parts.get("ip", ""), redis.number(parts, "port")
    info = yield from _tried(visit(server, server_commands.info()))
    return ReplicaFacts(
        name=_name(server),
        state=parts.get("state", ""),
        lag=redis.number(parts, "lag"),
        behind=max(0, redis.number(master, "master_repl_offset") - redis.number(parts, "offset")),
        read_only=None if isinstance(info, IssuerError) else info.get("slave_read_only", "1") == "1",
    )


def _name(server: Server) -> str:
    host, port = server
    return f"{host}:{port}" if host else ""


def _clock(server: int, before: int, after: int) -> ClockDifference:
    """Compare a server's time with this machine's time before the request and after the reply. All times are in ms."""
    return ClockDifference(server - (before + after) // 2, (after - before + 1) // 2)


def judge(facts: Facts) -> list[Finding]:
    """Run all checks, and return their findings, the worst first. Findings of one check are sorted by tag."""
    found = [finding for check in CHECKS for finding in sorted(check(facts), key=lambda finding: finding.tag or "")]
    for (check, level), kept in facts.kept.items():
        found += kept
        if more := facts.more[check, level]:
            what = f"further tags with the same finding: {more:,}"
            why = f"At most {MOST_FINDINGS:,} findings of a check are listed."
            do = "Resolve the listed findings, then run doctor again."
            found.append(Finding(check, level, "tags", what, why, do))
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))
