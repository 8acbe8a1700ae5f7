"""What is made of a Redis URL, and refused of it, before anything is sent."""

import redis

from issuer.drivers.routes import Address
from issuer.drivers.target import from_url
from issuer.errors import ConfigurationError
from tests.unit.refusals import refused

POOL = redis.ConnectionPool
SENTINELS = "redis+sentinel://127.0.0.1/mymaster"


def test_a_database_that_is_no_number_is_refused_and_not_shown() -> None:
    """It may be the rest of a password with a / in it."""
    for url in ("redis://127.0.0.1", "rediss://127.0.0.1:6380", SENTINELS):
        for path in ("x", "0/x", "-1", "1.0", "\u0661", "half-of-it@127.0.0.1:6379/0"):
            error = refused(
                ConfigurationError, "no number of a database; write %2F", from_url, f"{url}/{path}", "main", POOL
            )
            assert path not in str(error)


def test_a_number_is_the_database() -> None:
    for path, number in {"": 0, "/": 0, "/3": 3, "/3/": 3, "/3?health_check_interval=0": 3}.items():
        assert from_url(f"redis://127.0.0.1{path}", "main", POOL).connection(Address(), None).db == number, path
