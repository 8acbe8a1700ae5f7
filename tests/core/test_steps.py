"""Steps: those of many tags run together; what several callers need is done by one of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from issuer.clock import Deadline
from issuer.core.batch import TagBatch
from issuer.core.steps import (
    Ask,
    Elsewhere,
    Pipeline,
    Send,
    SingleFlight,
    Sleep,
    Step,
    Steps,
    Wait,
    ask,
    elsewhere,
    send,
    sleep,
)
from issuer.drivers.blocking.runner import Runner, new_flight
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable, StoreUnavailable, Unavailable, UnknownTag
from issuer.gateway.tag_scripts import read_hash
from issuer.strategies.snowflake.machines import blocking
from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured, StoreError, TagMissing, Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.refusals import refused
from tests.waiting import until

TAGS = [f"t{number}" for number in range(9)]


class Answering(MemoryStore):
    """A store whose `batch` makes at most `most` calls, or raises `error`. `calls`: how many calls each batch made."""

    def __init__(self, most: int = 1000, error: StoreError | None = None) -> None:
        super().__init__()
        self.most, self.error = most, error
        self.calls: list[int] = []

    def batch(self, calls: Any, *, timeout: float) -> list[Any]:
        if self.error is not None:
            raise self.error
        self.calls.append(min(self.most, len(calls)))
        return super().batch(calls[: self.most], timeout=timeout)


def run(batch: TagBatch[Any], store: Store, redis: Callable[[Step], Any] = lambda _: None) -> list[Step]:
    """Run the batch to its end as a driver does. Return the steps that it has yielded."""
    seen: list[Step] = []
    while batch.pending:
        steps = batch.go_on()
        with suppress(StopIteration):
            step = next(steps)
            while True:
                seen.append(step)
                try:
                    answer = step.question(store, 1.0) if isinstance(step, Ask) else redis(step)
                except (StoreError, IssuerError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
    return seen


def kinds(seen: list[Step]) -> list[type[Step]]:
    return [type(step) for step in seen]


def both(tag: str) -> Steps[list[str]]:
    first = yield from ask(lambda *_: f"store of {tag}")
    second = yield from send(read_hash(tag))
    third = yield from ask(lambda *_: f"again of {tag}")
    return [first, str(second), third]


def hashes(step: Step) -> Any:
    if isinstance(step, Send):
        return f"hash of {step.call.key}"
    assert isinstance(step, Pipeline)
    return [f"hash of {call.key}" for call in step.calls]


def expected(tag: str) -> list[str]:
    return [f"store of {tag}", f"hash of {tag}", f"again of {tag}"]


@pytest.mark.covers("U.19")
@pytest.mark.parametrize("most", [1, 4, 1000])
def test_each_tag_gets_its_own_answers_also_if_a_batch_of_the_store_ends_early(most: int) -> None:
    store = Answering(most)
    batch = TagBatch({tag: both(tag) for tag in TAGS}, store)
    seen = run(batch, store, hashes)
    assert batch.results == {tag: expected(tag) for tag in TAGS}
    assert not batch.errors
    if most == 1000:
        assert kinds(seen) == [Ask, Pipeline, Ask]
        assert store.calls == [9, 9]


def test_one_tag_is_run_without_a_batch() -> None:
    store = Answering()
    batch = TagBatch({"t0": both("t0")}, store)
    assert kinds(run(batch, store, hashes)) == [Ask, Send, Ask]
    assert (batch.results, store.calls) == ({"t0": expected("t0")}, [])
    assert run(TagBatch({}, store), store) == []


def test_an_error_of_one_tag_stops_this_tag_only() -> None:
    def fails(tag: str) -> Steps[str]:
        yield from ask(lambda store, left: store.halt(tag, timeout=left) if tag in TAGS[:2] else True)
        found = yield from send(read_hash(tag))
        return str(found)

    def answers(step: Step) -> Any:
        assert isinstance(step, Pipeline)
        return [RedisUnavailable("away") if call.key == "t5" else call.key for call in step.calls]

    store = Answering()
    batch = TagBatch({tag: fails(tag) for tag in TAGS}, store)
    run(batch, store, answers)
    assert set(batch.errors) == {"t0", "t1", "t5"}
    assert all(isinstance(batch.errors[tag], UnknownTag) for tag in ("t0", "t1"))
    assert (batch.errors["t0"].tag, batch.errors["t5"].tag) == ("t0", "t5")
    assert batch.results == {tag: tag for tag in TAGS if tag not in batch.errors}


def test_a_server_that_is_away_is_an_error_of_each_tag_and_steps_may_go_on_without_it() -> None:
    def careful(tag: str) -> Steps[str]:
        try:
            yield from send(read_hash(tag))
        except RedisUnavailable as error:
            return f"{error.tag}: {error}"
        return ""

    def away(_: Step) -> Any:
        raise RedisUnavailable("away")

    batch = TagBatch({tag: careful(tag) for tag in TAGS}, MemoryStore())
    assert kinds(run(batch, MemoryStore(), away)) == [Pipeline]
    assert all(batch.results[tag].startswith(f"{tag}: away") for tag in TAGS)


def test_a_store_that_does_not_answer_in_time_is_called_once_for_all() -> None:
    store = Answering(error=Unconfirmed("too late"))
    batch = TagBatch({tag: both(tag) for tag in TAGS}, store)
    assert kinds(run(batch, store, hashes)) == [Ask]
    assert all(isinstance(batch.errors[tag], StoreUnavailable) and batch.errors[tag].tag == tag for tag in TAGS)


def test_another_error_of_a_batch_is_found_for_each_tag_alone() -> None:
    store = Answering(error=Misconfigured("a row cannot be read"))

    def one(tag: str) -> Steps[str]:
        def question(*_: object) -> str:
            if tag == "t3":
                raise Misconfigured("a row cannot be read")
            return tag

        return (yield from ask(question))

    batch = TagBatch({tag: one(tag) for tag in TAGS}, store)
    run(batch, store)
    assert batch.results == {tag: tag for tag in TAGS if tag != "t3"}
    assert isinstance(batch.errors["t3"], ConfigurationError)


def test_pauses_are_taken_at_once_and_other_nodes_are_read_at_once() -> None:
    def steps(tag: str) -> Steps[str]:
        yield from sleep(float(tag[1:]) + 1)
        (seen,) = yield from elsewhere([read_hash(tag)])
        return str(seen)

    def answers(step: Step) -> Any:
        assert step == Sleep(9.0) or isinstance(step, Elsewhere)
        return [f"seen {call.key}" for call in step.calls] if isinstance(step, Elsewhere) else None

    batch = TagBatch({tag: steps(tag) for tag in TAGS}, MemoryStore())
    assert kinds(run(batch, MemoryStore(), answers)) == [Sleep, Elsewhere]
    assert batch.results == {tag: f"seen {tag}" for tag in TAGS}


def test_what_is_no_error_of_the_issuer_is_raised() -> None:
    def wrong() -> Steps[None]:
        yield from ask(lambda *_: None)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(TagBatch({"t0": wrong(), "t1": wrong()}, MemoryStore()), MemoryStore())


def test_a_tag_that_is_gone_is_named() -> None:
    def gone(tag: str) -> Steps[None]:
        yield from ask(lambda *_: None)
        raise TagMissing(tag)

    batch = TagBatch({tag: gone(tag) for tag in TAGS}, MemoryStore())
    run(batch, MemoryStore())
    assert [error.tag for error in batch.errors.values()] == TAGS


#: Seconds for what takes milliseconds.
WAIT = 60


class Crew(Runner):
    """Threads that need the same thing; the first one finds it as `works` says, once the test lets it go on."""

    def __init__(self, pool: ThreadPoolExecutor, works: list[IssuerError | None]) -> None:
        super().__init__(MemoryStore(), None, 1.0)
        self.flights = SingleFlight(new_flight)
        self.works = works
        self.done = False
        self.tried = 0
        self.waiting = 0
        self.go = threading.Event()
        self._pool = pool

    def ask(self, seconds: float = WAIT) -> Future[None]:
        deadline = Deadline(seconds)
        steps = self.flights.do(lambda: blocking(self._find), lambda: self.done, deadline, tag="orders", what="it")
        return self._pool.submit(lambda: self.run(steps, deadline))

    def _result(self, step: Step, deadline: Deadline, tag: str | None) -> object:
        self.waiting += isinstance(step, Wait)
        return super()._result(step, deadline, tag)

    def _find(self) -> None:
        error = self.works[self.tried]
        self.tried += 1
        assert self.go.wait(WAIT)
        if error is not None:
            raise error
        self.done = True


@pytest.fixture
def crew() -> Iterator[Callable[..., Crew]]:
    with ThreadPoolExecutor(4) as pool:
        yield lambda *works: Crew(pool, list(works))


def test_one_does_it_for_all(crew: Callable[..., Crew]) -> None:
    asked = crew(None)
    waiting = [asked.ask() for _ in range(4)]
    asked.go.set()
    assert [each.result(WAIT) for each in waiting] == [None] * 4
    assert asked.tried == 1


def test_whoever_has_time_left_goes_on_where_another_had_none(crew: Callable[..., Crew]) -> None:
    asked = crew(RedisUnavailable("no answer in time"), None)
    hasty = asked.ask()
    until(lambda: asked.tried == 1, timeout=WAIT)
    patient = asked.ask()
    until(lambda: asked.waiting == 1, timeout=WAIT)
    asked.go.set()
    refused(RedisUnavailable, "no answer in time", hasty.result, WAIT)
    assert patient.result(WAIT) is None
    assert asked.tried == 2


def test_a_caller_waits_for_another_one_until_its_own_deadline(crew: Callable[..., Crew]) -> None:
    asked = crew(None)
    first = asked.ask()
    until(lambda: asked.tried == 1, timeout=WAIT)
    refused(Unavailable, "it took too long", asked.ask(0.05).result, WAIT / 2)
    assert not first.done()
    asked.go.set()
    assert first.result(WAIT) is None


def test_what_asking_again_will_not_better_is_told_to_all(crew: Callable[..., Crew]) -> None:
    asked = crew(ConfigurationError("wrong"), None)
    first = asked.ask()
    until(lambda: asked.tried == 1, timeout=WAIT)
    others = [asked.ask() for _ in range(3)]
    until(lambda: asked.waiting == 3, timeout=WAIT)
    asked.go.set()
    errors = [each.exception(WAIT) for each in (first, *others)]
    assert [type(error) for error in errors] == [ConfigurationError] * 4
    assert len({id(error) for error in errors}) == 4
    assert asked.tried == 1
