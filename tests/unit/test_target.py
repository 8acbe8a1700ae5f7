"""What is made of a Redis URL, and refused of it, before anything is sent."""

import pytest
import redis

from issuer.drivers.routes import Address
from issuer.drivers.target import from_url
from issuer.errors import ConfigurationError

POOL = redis.ConnectionPool
SENTINELS = "redis+sentinel://127.0.0.1/mymaster"


@pytest.mark.parametrize("url", ["redis://127.0.0.1", "rediss://127.0.0.1:6380", SENTINELS])
@pytest.mark.parametrize("path", ["x", "0/x", "-1", "1.0", "\u0661", "half-of-it@127.0.0.1:6379/0"])
def test_a_database_that_is_no_number_is_refused_and_not_shown(url: str, path: str) -> None:
    """It may be the rest of a password with a / in it."""
    with pytest.raises(ConfigurationError, match="no number of a database; write %2F") as refused:
        from_url(f"{url}/{path}", "main", POOL)
    assert path not in str(refused.value)


@pytest.mark.parametrize(
    ("path", "number"), [("", 0), ("/", 0), ("/3", 3), ("/3/", 3), ("/3?health_check_interval=0", 3)]
)
def test_a_number_is_the_database(path: str, number: int) -> None:
    assert from_url(f"redis://127.0.0.1{path}", "main", POOL).connection(Address(), None).db == number
