"""What several callers need is done by one of them."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from issuer.clock import Deadline
from issuer.core.steps import SingleFlight, Step, Wait
from issuer.drivers.blocking.runner import Runner, new_flight
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable, Unavailable
from issuer.strategies.snowflake.machines import blocking
from issuer_persistence.memory import MemoryStore
from tests.refusals import refused
from tests.waiting import until

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
