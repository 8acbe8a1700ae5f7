"""Somebody has written into the field of the hash that says of what scheme its numbers are."""

from contextlib import suppress
from typing import Any

import pytest

import issuer
from tests.integration.days import Make
from tests.lua.hashes import GARBAGE
from tests.servers.fake import FencedFakeServer


@pytest.mark.colours("blocking")
@pytest.mark.covers("3.9")
@pytest.mark.parametrize(
    "settings",
    [{}, {"order": "trend"}, {"stride": 2, "offset": 1}, {"restart": "daily", "format": "{date:%Y%m%d}-{seq:06d}"}],
    ids=["plain", "trend", "stride", "daily"],
)
def test_after_a_recovery_the_tag_goes_on(make: Make, fake_server: FencedFakeServer, settings: dict[str, Any]) -> None:
    ids = make()
    ids.create("a", **settings)
    before = ids.next("a")
    with fake_server.client() as client:
        for name, garbage in GARBAGE.items():
            client.hset("issuer:{a}", "scheme", garbage or "")
            with suppress(issuer.CorruptState):  # or it is put right by then
                before, last = ids.next("a"), before
                assert before > last, name
            ids.recover("a")
            before, last = ids.next("a"), before
            assert before > last, name
