"""Faults on order: each strikes as often as was ordered; whatever a test orders, no number repeats."""

import multiprocessing
import os
import random
from collections.abc import Callable, Iterator

import pytest

import issuer
from issuer import Issuer
from issuer.testing import Double, override
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose
from tests.proofs.property.test_machine import FENCE, without
from tests.seeds import SEED, chosen, seeded

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("production"), pytest.mark.covers("N.12")]


@pytest.fixture
def double() -> Iterator[Double]:
    with Double(scheduler=None) as made:
        made.ids.create("orders", step=10)
        assert made.ids.next("orders") == 1
        yield made


def reserve(double: Double) -> int:
    return double.store.reserve("orders", 1, purpose=Purpose("test"), timeout=5).high


def test_the_store_is_away_for_the_next_3_calls(double: Double) -> None:
    double.store_away(calls=3)
    for _ in range(3):
        with pytest.raises(Unconfirmed, match="away"):
            reserve(double)
    assert reserve(double) == 11


def test_calls_of_the_issuer_are_counted_too(double: Double) -> None:
    double.store_away(calls=3)
    with pytest.raises(issuer.StoreUnavailable):
        double.ids.create("others", timeout=0)
    assert double.ids.take("orders", 9) == list(range(2, 11)), "Redis has numbers left"
    assert double.ids.next("orders") == 11, "the issuer tries again until the store is back"


def test_while_the_store_is_away_numbers_last_and_then_there_is_an_error(double: Double) -> None:
    with double.store_away():
        assert double.ids.take("orders", 9) == list(range(2, 11))
        with pytest.raises(issuer.StoreUnavailable):
            double.ids.next("orders", timeout=0.05)
    assert double.ids.next("orders") == 11


def test_a_lost_reply_of_the_store_costs_a_gap_and_no_number_twice(double: Double) -> None:
    double.lose_store_reply()
    with pytest.raises(Unconfirmed, match="lost"):
        reserve(double)
    assert reserve(double) == 12, "the lost reservation was made: 11 is a gap"


def test_a_lost_reply_of_redis_costs_a_number_and_the_call_goes_on(double: Double) -> None:
    double.lose_reply()
    assert double.ids.next("orders") == 3, "2 was drawn, and nobody got it"
    assert double.ids.next("orders") == 4


def test_a_call_with_a_key_gets_its_number_although_the_reply_was_lost(double: Double) -> None:
    double.lose_reply()
    assert double.ids.next("orders", key="order-7") == 2
    assert double.ids.next("orders", key="order-7") == 2


def test_so_many_requests_do_not_reach_redis(double: Double) -> None:
    double.redis_away(calls=2)
    with pytest.raises(issuer.RedisUnavailable):
        double.ids.next("orders", timeout=0)
    assert double.ids.next("orders") == 2, "nothing was drawn, and the issuer tries again"


def test_while_redis_is_away_strict_tags_wait_and_trend_tags_go_on(double: Double) -> None:
    double.ids.create("rows", order="trend")
    with double.redis_away():
        with pytest.raises(issuer.RedisUnavailable):
            double.ids.next("orders", timeout=0.05)
        assert double.ids.next("rows", timeout=5) == 1
    assert double.ids.next("orders") == 2


def back(double: Double) -> None:
    double.roll_back()


def lost(double: Double) -> None:
    double.lose_data()


def failed_over(double: Double) -> None:
    double.fail_over()


@pytest.mark.parametrize("harm", [back, lost, failed_over])
def test_a_redis_that_went_back_or_was_emptied_or_replaced_repeats_no_number(
    double: Double, harm: Callable[[Double], None]
) -> None:
    numbers = double.ids.take("orders", 3)
    double.snapshot()
    numbers += double.ids.take("orders", 3)
    for _ in range(2):
        harm(double)
        numbers += double.ids.take("orders", 3)
    assert numbers == sorted(set(numbers)), "higher and higher"
    assert numbers[6] > 10, "the fence has rejected the rest of the segment"
    assert double.ids.verify() == []


def test_it_can_go_back_only_to_a_snapshot(double: Double) -> None:
    with pytest.raises(issuer.IssuerError, match="snapshot"):
        double.roll_back()


def test_counts_must_be_positive(double: Double) -> None:
    for order in (double.store_away, double.redis_away, double.lose_reply, double.lose_store_reply):
        with pytest.raises(issuer.InvalidArgument):
            order(0)
    assert double.ids.next("orders") == 2


def test_forked_children_share_the_count_of_the_store(double: Double) -> None:
    double.store_away(calls=3)
    for _ in range(2):
        child = os.fork()
        if not child:
            try:
                reserve(double)
            except Unconfirmed:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(Unconfirmed):
        reserve(double)
    assert reserve(double) == 11


TAGS = ("strict", "trend", "leased")
STEPS = 50
ERRORS = (issuer.StoreUnavailable, issuer.RedisUnavailable)


class Search:
    """Random events on one double, whose numbers are checked after each draw."""

    def __init__(self, double: Double, seed: int) -> None:
        self.double = double
        self.random = random.Random(seed)
        self.issued: dict[str, set[int]] = {tag: set() for tag in TAGS}
        self.last = 0
        self.keys: dict[str, int] = {}
        self.processes = [self.process() for _ in range(3)]
        double.ids.create("strict", step=3)
        double.ids.create("trend", step=4, order="trend")
        double.ids.create("leased", step=30, order="trend", lease=5)
        double.snapshot()
        self.events: list[Callable[[], object]] = [
            lambda: double.store_away(self.random.randint(1, 3)),
            lambda: double.lose_store_reply(self.random.randint(1, 2)),
            lambda: double.redis_away(self.random.randint(1, 3)),
            lambda: double.lose_reply(self.random.randint(1, 2)),
            double.redis_away,
            double.redis_back,
            double.store_away,
            double.store_back,
            double.snapshot,
            double.roll_back,
            double.roll_back,
            double.lose_data,
            double.fail_over,
            lambda: double.clock.move(self.random.choice([-100, -1, 1, 100])),
            self.crash,
            self.stop,
            self.recover,
            self.fork,
            self.repeat_key,
        ]

    def process(self) -> Issuer:
        """Make what stands for a process of its own."""
        return self.double.connect(scheduler=None, timeout=0.05, redis_timeout=0.05, store_timeout=0.05)

    def check(self, tag: str, numbers: list[int]) -> None:
        assert numbers == sorted(set(numbers)), f"ORDER: {numbers} of {tag}"
        assert self.issued[tag].isdisjoint(numbers), f"REPEAT: {numbers} of {tag}"
        self.issued[tag].update(numbers)
        if tag == "strict" and numbers:
            assert numbers[0] > self.last, f"ORDER: {numbers} after {self.last}"
            self.last = numbers[-1]

    def draw(self) -> None:
        tag = self.random.choice(TAGS)
        try:
            numbers = self.random.choice(self.processes).take(tag, self.random.randint(1, 6))
        except ERRORS as error:
            numbers = [*(error.drawn or ())]
        self.check(tag, numbers)

    def crash(self) -> None:
        self.processes[0].engine.registry.closed = True  # nothing is given back
        self.processes[0] = self.process()

    def stop(self) -> None:
        self.processes[1].close()
        self.processes[1] = self.process()

    def recover(self) -> None:
        try:
            self.processes[2].recover(self.random.choice(TAGS))
        except (*ERRORS, issuer.StoreBehind):
            pass

    def fork(self) -> None:
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                numbers = self.processes[2].take("leased", 3)
            except ERRORS as error:
                numbers = [*(error.drawn or ())]
            os.write(writing, " ".join(map(str, numbers)).encode())
            os._exit(0)
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0
        with os.fdopen(reading) as said:
            self.check("leased", [int(each) for each in said.read().split()])

    def repeat_key(self) -> None:
        key = self.random.choice("abc")
        try:
            number = self.random.choice(self.processes).next("trend", key=key, ttl=100_000)
        except ERRORS:
            return
        if self.keys.get(key) != number:  # Redis has lost the key, or it is new
            self.check("trend", [number])
            self.keys[key] = number

    def run(self) -> None:
        for _ in range(STEPS):
            self.random.choice(self.events)()
            for _ in range(self.random.randint(0, 3)):
                self.draw()
        self.double.redis_back()
        self.double.store_back()
        for tag in TAGS:
            self.check(tag, self.double.ids.take(tag, 10))
        assert self.double.ids.verify() == []


def search(searches: int) -> None:
    for seed in range(searches):
        with Double() as double:
            try:
                Search(double, seeded(seed)).run()
            except Exception as error:
                error.add_note(f"search {seed}; {SEED}={chosen()}")
                raise


@pytest.mark.parametrize("searches", [3, pytest.param(100, marks=pytest.mark.soak)])
def test_no_order_of_events_repeats_a_number(searches: int) -> None:
    search(searches)


def test_without_the_fence_the_search_finds_a_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("next", "lease"):
        without(name, FENCE, "false", monkeypatch)
    with pytest.raises(AssertionError, match=r"^(REPEAT|ORDER)"):
        search(20)


def many(seed: int) -> list[int]:
    return issuer.default().take("orders", 1 + seed % 7)


@pytest.mark.parametrize("harm", ["roll_back", "lose_data", "fail_over"])
def test_processes_that_draw_while_redis_restarts_repeat_nothing(harm: str) -> None:
    with override(timeout=30) as double:
        double.ids.create("orders", step=20)
        double.snapshot()
        with multiprocessing.get_context("fork").Pool(3) as pool:
            drawn = pool.map_async(many, range(300), chunksize=1)
            for _ in range(3):
                getattr(double, harm)()
            numbers = [number for each in drawn.get(120) for number in each]
        assert len(set(numbers)) == len(numbers) == sum(1 + seed % 7 for seed in range(300))
        assert double.ids.verify() == []
