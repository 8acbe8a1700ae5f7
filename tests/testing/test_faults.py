"""Faults on order: each strikes as often as was ordered, callers get the errors of real faults, no number repeats."""

import os
from collections.abc import Callable, Iterator

import pytest

import issuer
from issuer.testing import Double
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose

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
