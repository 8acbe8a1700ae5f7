"""A tag whose numbers begin anew each day, and what its texts show."""

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

from issuer.core.issued import Issued

VIENNA = ZoneInfo("Europe/Vienna")
DAILY: dict[str, Any] = {"restart": "daily", "timezone": "Europe/Vienna", "format": "{date:%Y%m%d}-{seq:06d}"}
EVE, DAY = "20261120", "20261121"

Set = Callable[[str], None]


def shown(issued: Issued) -> tuple[str, int]:
    """Return the period and the number that the text shows."""
    day, number = issued.text.split("-")
    assert (day, int(number)) == ((issued.period or "").replace("-", ""), issued.value)
    return day, int(number)
