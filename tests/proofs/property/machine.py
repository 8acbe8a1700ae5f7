"""A state machine over everything that can happen to an issuer; its promise is checked after every number.

Draws, leases, streams, extensions that hang in between, crashes, Redis going back in time, hand backs, recover, delete,
fork, a restored store.

The servers are doubles and time is virtual, so that hypothesis may try thousands of orders, and a seed names each of
them.
"""

import copy
import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import issuer
from issuer import Issuer
from issuer.clock import Deadline
from issuer.core.steps import Ask, Send, Steps
from issuer.core.supply.extend import Extension, extend
from issuer.core.supply.local_buffer import FastPath, LocalBuffer
from issuer.core.supply.mode import Mode
from issuer.drivers.blocking.combiner import Combiner
from issuer.engine.base import OPEN_ENGINES
from issuer.gateway import tag_scripts
from issuer.gateway.keys import redis_key
from issuer.threads import finished
from issuer_persistence.errors import StoreError
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order
from tests.proofs.virtual.turns import virtual
from tests.servers.fake import FencedFakeServer

TAGS = ("strict", "trend")
ORDERS: dict[str, Order] = {"strict": "strict", "trend": "trend"}
#: What a process may be: on Redis; without it, and then it issues of the trend tag only; on Redis with leases, the one
#: without a scheduler, the other with its numbers laid open, as if a scheduler swept.
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "direct": {"redis": "none"},
    "leased": {"lease": 3},
    "open": {"lease": 5},
}
AHEAD = ("leased", "open")
REFUSALS = (issuer.StoreUnavailable, issuer.RedisUnavailable, issuer.StoreBehind)
PROCESSES = 4

tags = st.sampled_from(TAGS)
processes = st.integers(0, PROCESSES - 1)
kinds = st.sampled_from(sorted(KINDS))


def twin_of(hand: LocalBuffer[Any], fast_path: FastPath) -> LocalBuffer[Any]:
    """Return what a forked child has of its parent's hand, and lay open there what is laid open here."""
    twin: LocalBuffer[Any] = LocalBuffer(hand._tag, None if hand._fast_path is None else fast_path)
    held, cur, at, shown, issued = hand._state
    twin._state = held, cur, at, copy.copy(shown), issued
    if hand._fast_path is not None:
        fast_path.publish(hand._tag, twin._state[3])
    return twin


def lay_open(ids: Issuer) -> None:
    """Let its numbers lie open, although nobody sweeps but the test."""
    make = ids.engine.make_combiner

    def opened(tag: str) -> Combiner:
        line = make(tag)
        line.supply.runtime = line.supply.origin._runtime = replace(line.supply.runtime, scheduled=True)
        return line

    ids.engine.make_combiner = ids.engine.registry._make = opened  # type: ignore[method-assign]  # for the roster after a fork, too


class ServedStore(MemoryStore):
    """A memory store that stands for a server: a forked child shares it with its parent."""

    def after_fork(self) -> None:
        """Nothing to forget: there are no connections."""


class IssuerMachine(RuleBasedStateMachine):
    """Four processes, a strict and a trend tag, one Redis, one store."""

    #: The kinds of the processes at first; later ones are of any kind.
    begins_with = tuple(KINDS)

    @staticmethod
    def open_store() -> Any:
        """Return an empty store that can be put back in time."""
        return ServedStore()

    def __init__(self) -> None:
        super().__init__()
        self.ends = ExitStack()
        turns = self.ends.enter_context(virtual())
        self.server = FencedFakeServer()
        self.server.clock = turns.wall
        self.store = self.open_store()
        self.kinds = list(self.begins_with)
        self.ids = [self.process(number) for number in range(PROCESSES)]
        #: Draws nothing, and does what needs Redis.
        self.operator = issuer.connect(redis=self.server.client(), store=self.store, scheduler=None, timeout=0.02)
        self.issued: dict[str, set[int]] = {tag: set() for tag in TAGS}
        self.last: dict[str, int] = dict.fromkeys(TAGS, 0)
        self.own_last: dict[tuple[int, str], int] = {}
        self.streams: dict[int, Iterator[int]] = {}
        #: Up to which number `recover` has retired a tag; and how much of that a process with leases must know.
        self.retired: dict[str, int] = dict.fromkeys(TAGS, 0)
        self.knows: dict[int, int] = {}
        self.snapshot: dict[bytes, dict[bytes, bytes]] = {}
        self.backup: Any = None
        self.in_flight: list[tuple[str, Send]] = []
        self.random = random.Random(0)
        self.steps_without_redis = 0

    def process(self, number: int) -> Issuer:
        kind = self.kinds[number]
        settings = {"redis": self.server.client(), **KINDS[kind]}
        made = issuer.connect(store=self.store, scheduler=None, timeout=0.02, **settings)
        if kind == "open":
            lay_open(made)
        return made

    def operated_by(self, process: int) -> Issuer:
        return self.operator if self.kinds[process] == "direct" else self.ids[process]

    def check(self, process: int, tag: str, numbers: list[int]) -> None:
        record = self.store.get(tag, timeout=1)
        assert record is not None
        line = self.ids[process].engine.registry.combiners.get(tag)
        kind, retired = self.kinds[process], 0
        if kind != "direct" and line is not None and line.supply.origin.mode is not Mode.DIRECT:
            ahead = kind in AHEAD and tag == "trend"
            retired = self.knows.get(process, 0) if ahead else self.retired[tag]
        for number in numbers:
            assert number > retired, f"RETIRED: {number} of {tag}, though recover has retired all up to {retired}"
            assert number not in self.issued[tag], f"REPEAT: {number} of {tag}"
            assert number <= record.max, f"ABOVE MAX: {number} of {tag}, max {record.max}"
            if tag == "strict":
                assert number > self.last[tag], f"ORDER: {number} of {tag} after {self.last[tag]}"
            before = self.own_last.get((process, tag), 0)
            assert number > before, f"ORDER: {number} of {tag} after {before} in one process"
            self.issued[tag].add(number)
            self.last[tag] = max(self.last[tag], number)
            self.own_last[process, tag] = number

    # Two small numbers: among larger ones hypothesis throws in constants of all the modules that happen to be imported.
    @initialize(seed=st.integers(0, 99), more=st.integers(0, 99))
    def make_tags(self, seed: int, more: int) -> None:
        self.random.seed(100 * seed + more)
        self.operator.create("strict", step=3, timeout=5)
        self.operator.create("trend", step=4, order="trend", timeout=5)

    @invariant()
    def life_goes_on(self) -> None:
        """Between two events some numbers are drawn: most events do harm only to draws after them."""
        for _ in range(self.random.randint(0, 4)):
            self.draw(self.random.randrange(PROCESSES), self.random.choice(TAGS), self.random.randint(1, 4))
        if not self.server.connected:
            self.steps_without_redis += 1
            if self.steps_without_redis == 3:
                self.redis_comes_back()

    @rule(process=processes, tag=tags, n=st.integers(1, 5))
    def draw(self, process: int, tag: str, n: int) -> None:
        numbers: list[int] = []
        kind = self.kinds[process]
        tag = "trend" if kind == "direct" else tag
        try:
            if n % 3 == 1 and tag == "trend" and kind != "plain":  # there it would draw ahead from now on
                stream = self.streams.setdefault(process, self.ids[process].stream("trend"))
                numbers.extend(itertools.islice(stream, n))
            while len(numbers) < n:
                if n % 2:
                    numbers.append(self.ids[process].next(tag))
                else:
                    numbers += self.ids[process].engine.registry.combiner(tag).draw(n - len(numbers), Deadline(0.02))
        except issuer.UnknownTag:
            self.streams.pop(process, None)
        except REFUSALS:
            # Somebody else is elected and hangs, or Redis is away, or a restored store was found out.
            self.streams.pop(process, None)
            self.server.time_offset += 10
        self.check(process, tag, numbers)

    @rule(process=processes)
    def a_second_passes(self, process: int) -> None:
        for line in self.ids[process].engine.registry.combiners.values():
            line.supply._checked_at -= 3
        if self.kinds[process] == "open":
            self.ids[process].engine.sweep()

    @precondition(lambda self: self.server.connected)
    @rule(process=processes)
    def leases_are_looked_at(self, process: int) -> None:
        line = self.ids[process].engine.registry.combiners.get("trend")
        if line is not None and line.supply.state.buffer is not None and line.supply.origin.mode is not Mode.DIRECT:
            checks = line.supply._check(line.supply.state.buffer)
            self.attempt(lambda: finished(lambda: line.run(checks, Deadline(5))))
            self.knows[process] = self.retired["trend"]

    @rule(process=processes)
    def extend(self, process: int) -> None:
        self.ids[process].tick(timeout=0.02)

    @rule(process=processes, n=st.integers(1, 6))
    def reserve_a_range(self, process: int, n: int) -> None:
        try:
            numbers = self.ids[process].reserve("trend", n, timeout=0.02)
        except (issuer.UnknownTag, issuer.StoreBehind):
            return
        record = self.store.get("trend", timeout=1)
        assert record is not None
        assert self.issued["trend"].isdisjoint(numbers), f"REPEAT: {numbers} of trend"
        assert numbers[-1] <= record.max
        self.issued["trend"].update(numbers)

    @rule(process=processes, tag=tags, step=st.integers(1, 6), above=st.none() | st.integers(0, 40))
    def configure(self, process: int, tag: str, step: int, above: int | None) -> None:
        self.attempt(lambda: self.operated_by(process).configure(tag, step=step, above=above, timeout=0.02))

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule(process=processes, tag=tags)
    def an_extension_hangs(self, process: int, tag: str) -> None:
        seen = self.operated_by(process).engine.registry.combiner(tag).supply.state.seen
        self.server.time_offset += 10  # whoever was elected before counts as lost
        record = self.store.get(tag, timeout=1)
        if record is None:
            return
        key = redis_key("issuer", tag)
        steps: Steps[Extension] = extend(
            record, key, store_id=self.store.store_id(timeout=1), seen=seen, window=5, claimant="7"
        )
        redis = self.operator.engine.runner.redis
        assert redis is not None
        try:
            step = next(steps)
            while not (isinstance(step, Send) and step.call.decode is tag_scripts._loaded):
                try:
                    assert isinstance(step, (Ask, Send))
                    if isinstance(step, Ask):
                        result = step.question(self.store, 1.0)
                    else:
                        sent = step
                        result = finished(lambda: redis.do(sent, Deadline(0.02)))  # noqa: B023 - called at once
                except (StoreError, issuer.IssuerError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except (StopIteration, StoreError, issuer.IssuerError):
            return
        self.in_flight.append((tag, step))
        self.server.time_offset += 10

    @precondition(lambda self: self.in_flight)
    @rule(which=st.integers(0, 2), again=st.booleans())
    def the_load_arrives(self, which: int, again: bool) -> None:
        tag, step = self.in_flight[which % len(self.in_flight)]
        if not again:  # otherwise the network keeps a copy
            self.in_flight.remove((tag, step))
        redis = self.operator.engine.runner.redis
        assert redis is not None
        self.attempt(lambda: finished(lambda: redis.do(step, Deadline(0.02))))

    @rule(process=processes)
    def crash(self, process: int) -> None:
        self.ids[process].engine.registry.closed = True  # nothing is given back
        OPEN_ENGINES.discard(self.ids[process].engine)
        self.renew(process)

    @rule(process=processes, kind=kinds)
    def stop(self, process: int, kind: str) -> None:
        self.ids[process].close()
        self.kinds[process] = kind
        self.renew(process)

    def renew(self, process: int) -> None:
        self.ids[process] = self.process(process)
        self.streams.pop(process, None)
        self.knows[process] = self.retired["trend"]
        for tag in TAGS:
            self.own_last.pop((process, tag), None)

    @rule(parent=processes)
    def fork(self, parent: int) -> None:
        child = parent ^ 1  # the other one gives way to it
        self.kinds[child] = self.kinds[parent]
        self.crash(child)
        born = self.ids[child]
        for tag, line in self.ids[parent].engine.registry.combiners.items():
            supply, twin = line.supply, born.engine.registry.combiner(tag).supply
            if supply.state.record is not None:
                twin.origin.use(supply.state.record)
            twin.state.seen, twin.origin.mode = supply.state.seen, supply.origin.mode
            twin.state.buffer = (
                None if supply.state.buffer is None else twin_of(supply.state.buffer, born.engine.runtime.fast_path)
            )
        if parent in self.streams:
            self.streams[child] = itertools.chain(born._open.get("trend", ()), born.stream("trend"))
        born.engine.after_fork()

    @precondition(lambda self: self.server.connected)
    @rule()
    def take_snapshot(self) -> None:
        with self.server.client() as client:
            self.snapshot = {key: client.hgetall(key) for key in client.scan_iter(_type="HASH")}

    @precondition(lambda self: self.server.connected)
    @rule(failover=st.booleans())
    def redis_goes_back_to_the_snapshot(self, failover: bool) -> None:
        with self.server.client() as client:
            client.flushall()
            for key, fields in self.snapshot.items():
                client.hset(key, mapping=fields)
        self.server.new_reign()
        if not failover:
            self.server.master_replid2 = "0" * 40

    @precondition(lambda self: self.server.connected)
    @rule(restart=st.booleans())
    def redis_is_emptied(self, restart: bool) -> None:
        with self.server.client() as client:
            client.flushall()
        if restart:
            self.server.wipe()

    @precondition(lambda self: self.server.connected)
    @rule()
    def redis_goes_away(self) -> None:
        self.server.connected = False
        self.steps_without_redis = 0

    @precondition(lambda self: not self.server.connected)
    @rule()
    def redis_comes_back(self) -> None:
        self.server.connected = True
        for ids in (*self.ids, self.operator):
            if ids.engine.runner.redis is not None:  # by now everybody's trial has found out
                ids.engine.runner.redis.route.breakers.clear()

    @rule()
    def the_clock_of_redis_jumps_back(self) -> None:
        self.server.time_offset -= 100

    @rule(process=processes, tag=tags)
    def recover(self, process: int, tag: str) -> None:
        def retire() -> None:
            (recovery,) = self.operated_by(process).recover(tag, timeout=0.02)
            self.retired[tag] = recovery.new

        self.attempt(retire)

    @rule(process=processes, tag=tags)
    def delete_and_make_again(self, process: int, tag: str) -> None:
        self.attempt(lambda: self.operated_by(process).delete(tag, timeout=0.02))
        self.attempt(lambda: self.operated_by(process).create(tag, step=3, order=ORDERS[tag], timeout=0.02))

    @rule()
    def back_up_the_store(self) -> None:
        self.backup = self.store.snapshot()

    @precondition(lambda self: self.backup is not None and self.server.connected)
    @rule()
    def restore_the_store_with_the_issuers_stopped_and_recover(self) -> None:
        self.retired = dict.fromkeys(TAGS, 0)  # first: renewed processes know of it
        for process in range(PROCESSES):
            self.stop(process, self.kinds[process])
        self.in_flight.clear()
        self.store.restore(self.backup)
        for tag in TAGS:
            record = self.store.get(tag, timeout=1)
            if record is None or record.deleted:
                self.operator.create(tag, step=3, order=ORDERS[tag], timeout=5)
            self.operator.recover(tag, at_least=max(self.issued[tag], default=0), timeout=5)

    def attempt(self, call: Any) -> None:
        try:
            call()
        except (issuer.UnknownTag, issuer.TagExists, issuer.InvalidArgument, *REFUSALS):
            self.server.time_offset += 10

    def teardown(self) -> None:
        for ids in (*self.ids, self.operator):
            ids.engine.registry.closed = True
            OPEN_ENGINES.discard(ids.engine)
        self.ends.close()
