"""What a server's words mean to a caller."""

import pytest
import redis

from issuer.drivers.redis_errors import SETTLING, meaning, settling
from issuer.errors import ConfigurationError, FenceError, IssuerError, RedisUnavailable


@pytest.mark.parametrize(
    ("error", "meant"),
    [
        (
            redis.ResponseError("This Redis command is not allowed from script script: 9c4b"),
            FenceError,
        ),
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
