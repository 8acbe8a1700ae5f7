"""From when on a raised tag gives nothing lower, to processes that hold numbers and to those that don't."""

import pytest

import issuer
from issuer_persistence.memory import MemoryStore
from tests.waiting import until

FAR = 1_000_000


@pytest.mark.parametrize("how", ["configure", "recover"])
def test_numbers_that_a_process_holds_come_until_it_looks_or_has_used_them_up(redis_url: str, how: str) -> None:
    store = MemoryStore()
    with (
        issuer.connect(redis=redis_url, store=store, timeout=40) as ids,
        issuer.connect(redis="none", store=store, timeout=40) as alone,
        issuer.connect(redis=redis_url, store=store, timeout=40, scheduler=None) as operator,
    ):
        ids.create("strict")
        ids.create("leased", step=FAR // 2, order="trend", lease=FAR // 4)
        ids.create("direct", step=50, order="trend")
        for tag in ("strict", "leased"):
            ids.next(tag)
        alone.next("direct")
        for tag in ("strict", "leased", "direct"):
            if how == "configure":
                operator.configure(tag, above=FAR)
            else:
                operator.recover(tag, at_least=FAR)
        assert ids.next("strict") > FAR
        until(lambda: ids.next("leased") > FAR, 60)
        lower = 0
        while alone.next("direct") <= FAR:
            lower += 1
        assert lower < 2 * 50
