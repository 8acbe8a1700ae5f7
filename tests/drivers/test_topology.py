"""When a server that was silent is tried again, and by whom; and what a server's words mean to a caller."""

from contextlib import suppress

import pytest
import redis

from issuer.drivers import topology as module
from issuer.drivers.redis_errors import SETTLING, meaning, settling
from issuer.drivers.topology import FORGOTTEN, TRIAL, Breaker, LeftAlone
from issuer.errors import ConfigurationError, FenceError, IssuerError, RedisUnavailable
from tests.clocks import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "monotonic", made)
    return made


def admitted(breaker: Breaker, *, probe: bool = True) -> bool:
    with suppress(LeftAlone):
        breaker.admit(probe=probe)
        return True
    return False


def test_after_silence_one_call_at_a_time_tries_again(clock: Clock) -> None:
    breaker = Breaker()
    breaker.silent("dead", clock.now)
    with pytest.raises(LeftAlone, match="dead"):
        breaker.admit(probe=True)
    assert 0 < breaker.retry_after() <= 0.01
    clock.now += breaker.retry_after()
    assert breaker.admit(probe=True)
    assert [admitted(breaker) for _ in range(100)] == [False] * 100
    clock.now += TRIAL  # it hangs: another one may try beside it
    assert admitted(breaker)
    breaker.answered()
    assert admitted(breaker, probe=False)
    assert not breaker.admit(probe=True)  # it answers, and this is no trial
    assert breaker.retry_after() == 0.0


def test_who_can_do_without_leaves_the_trial_to_others_until_nobody_tries(clock: Clock) -> None:
    breaker = Breaker()
    breaker.silent("dead", clock.now)
    for _ in range(10):
        clock.now += 1.0  # somebody tries each second
        assert not admitted(breaker, probe=False)
        assert admitted(breaker)
        breaker.silent("dead", clock.now)
    clock.now += FORGOTTEN
    assert admitted(breaker, probe=False)


def test_the_pause_grows_to_a_quarter_of_a_second_and_is_jittered(clock: Clock) -> None:
    longest = set()
    for _ in range(20):
        breaker = Breaker()
        for failures in range(12):
            clock.now += 1.0
            breaker.silent("dead", clock.now)
            assert failures or breaker.retry_after() <= 0.01
        longest.add(breaker.retry_after())
    assert all(0.12 <= each <= 0.25 for each in longest)
    assert len(longest) > 10


def test_calls_that_were_under_way_together_count_once(clock: Clock) -> None:
    breaker = Breaker()
    began = clock.now
    clock.now += 1.0
    for _ in range(100):
        breaker.silent("dead", began)
    assert breaker.retry_after() <= 0.01


def test_no_pause_is_longer_than_its_cap_whatever_the_clock_says(clock: Clock) -> None:
    breaker = Breaker()
    breaker.silent("dead", clock.now)
    clock.now -= 1e9  # as after a machine was copied
    assert 0 < breaker.retry_after() <= TRIAL
    assert admitted(breaker, probe=False)


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (redis.ResponseError("This Redis command is not allowed from script script: 9c4b"), FenceError),
        (redis.ResponseError("This Redis command is not allowed from scripts"), FenceError),
        (redis.ResponseError("unknown command 'EVALSHA', with args beginning with: "), FenceError),
        (redis.ResponseError("Unknown Redis command called from script script: 9c4b"), FenceError),
        (redis.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), ConfigurationError),
        (redis.ConnectionError("tlsv13 alert certificate required (_ssl.c:2580)"), ConfigurationError),
        (redis.ConnectionError("[SSL: WRONG_VERSION_NUMBER] wrong version number"), ConfigurationError),
        (redis.ConnectionError("Error 111 connecting to 127.0.0.1:1. Connection refused"), RedisUnavailable),
        (redis.ResponseError("OOM command not allowed when used memory > 'maxmemory'."), RedisUnavailable),
    ],
)
def test_only_what_waiting_can_mend_is_unavailable(error: redis.RedisError, meant: type[IssuerError]) -> None:
    assert type(meaning(error, "r", "issuer:{a}", "a")) is meant


def test_what_a_server_answers_holds_for_a_while() -> None:
    assert settling(redis.exceptions.BusyLoadingError("LOADING")) == SETTLING
    assert settling(redis.ResponseError("BUSY")) == SETTLING
    assert settling(redis.ConnectionError("refused")) == 0
