"""A script that ends half done, as the server denies a command in the middle of it, leaves a hash that heals.

What it leaves is what a server would leave that stops between two writes of the script.
"""

import re
from collections.abc import Callable, Iterator
from itertools import product

import pytest
import redis

from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.lua.hashes import INTACT, KEY, OTHER_REIGN, TagHash, command, numbers
from tests.servers.redis import RedisServer

USER = "half"

#: Up to where the store has reserved.
RESERVED = 200

#: Buffer 1 is in use, or used up; buffer 2 is full. `returned`: a lease has come back, and another one may.
HASHES: dict[str, Callable[[TagHash, str], None]] = {
    "in buffer 1": lambda tag, scheme: tag.put(50, 100, (100, RESERVED), **_of(scheme), asked=17),
    "at the switch": lambda tag, scheme: tag.put(100, 100, (100, RESERVED), **_of(scheme), asked=17),
    "returned": lambda tag, scheme: tag.put(
        50, 100, (100, RESERVED), **_of(scheme), backs=3, backs_before=2, backs_low=9
    ),
    "used up": lambda tag, scheme: tag.put(RESERVED, RESERVED, **_of(scheme)),
    "of another reign": lambda tag, scheme: tag.put(50, 100, (100, RESERVED), **_of(scheme), fence=OTHER_REIGN),
}

SCHEME = "1-a-x"

#: A call of each script, under a scheme, and the numbers that it gives to its caller.
CALLS: dict[str, Callable[[TagHash, str], list[str]]] = {
    "next": lambda tag, scheme: tag.next(70, scheme=scheme),
    "lease": lambda tag, scheme: tag.lease(70, scheme=scheme),
    "once": lambda tag, scheme: tag.once(scheme=scheme),
    "giveback": lambda tag, _: tag.give_back(40, 50, backs=3),
    "open": lambda tag, scheme: tag.open(scheme=scheme),
    "load": lambda tag, _: tag.load(RESERVED, RESERVED + 100),
    "floor": lambda tag, scheme: tag.floor(120, scheme=scheme),
    "floor with another scheme": lambda tag, scheme: tag.floor(120, scheme="-" if scheme else SCHEME),
    "floor with a later scheme": lambda tag, scheme: tag.floor(0, scheme="2-a-y" if scheme else ""),
    "floor above all": lambda tag, scheme: tag.floor(300, scheme=scheme),
}


def _of(scheme: str) -> dict[str, str | int]:
    return {"scheme": scheme, "until": HIGHEST} if scheme else {}


@pytest.fixture
def mine(tag: TagHash, any_redis: RedisServer) -> Iterator[TagHash]:
    """The hash as USER sees it, who may lack a right."""
    command(tag.client, "ACL", "SETUSER", USER, "reset", "on", ">secret")
    with any_redis.client(username=USER, password="secret", decode_responses=True) as client:
        yield TagHash(client)
    command(tag.client, "ACL", "DELUSER", USER)


def healed(tag: TagHash, scheme: str) -> list[int]:
    """Draw 250 numbers as an issuer does that knows this scheme. Return those that the hash had, and new ones."""
    drawn: list[int] = []
    top, turns = 300, 0
    while len(drawn) < 250:
        reply = tag.next(25, scheme=scheme)
        if reply[0] == "ok":
            drawn += numbers(reply)
            continue
        turns += 1
        assert turns < 10, reply
        if reply[0] == "scheme":  # the record has the caller's
            assert tag.floor(0, scheme=scheme or "-")[0] == "floored"
            continue
        opened = tag.open(role="claim", window=0, scheme=scheme)
        if opened[0] == "otherscheme":
            assert tag.floor(0, scheme=scheme or "-")[0] == "floored"
            continue
        assert opened[0] == "open", (reply, opened)
        _, reign, born, *_ = opened
        tag.load(top, top + 100, reign=reign, born=born)
        top += 100
    return drawn


@pytest.mark.parametrize("scheme", ["", SCHEME])
@pytest.mark.parametrize("name", CALLS)
def test_each_command_that_is_denied_in_turn_leaves_a_hash_that_heals(
    tag: TagHash, mine: TagHash, name: str, scheme: str
) -> None:
    called = re.findall(r"redis\.call\('(\w+)'", INTACT[name.partition(" ")[0]])
    denied = 0
    for command_name, (standing, put) in product(sorted(set(called)), HASHES.items()):
        put(tag, scheme)
        tag.client.delete(f"{KEY}:once:k")
        before = tag.fields()
        command(tag.client, "ACL", "SETUSER", USER, "reset", "on", ">secret", "~*", "+@all", f"-{command_name}")
        drawn: list[int] = []
        try:
            reply = CALLS[name](mine, scheme)
        except redis.ResponseError as error:
            denied += "permission" in str(error).lower() or "can't run this command" in str(error)
        else:
            drawn = list(numbers(reply)) if reply[0] == "ok" else []
        where = f"{name} without {command_name}, {standing}: {tag.fields()}"
        try:
            drawn += healed(tag, scheme)
        except AssertionError as error:
            raise AssertionError(where) from error
        # Neither what was given out before, nor anything twice. A lease of 41..50 has come back, or has not.
        issued = int(before["cur"]) - (10 if name == "giveback" and standing == "returned" else 0)
        assert min(drawn) > issued, where
        assert repeats(drawn) == [], where
    assert denied >= len(HASHES), denied


def test_a_floor_that_ends_half_done_leaves_nothing_to_draw(tag: TagHash, mine: TagHash) -> None:
    """Its numbers belong to the scheme before, and what is kept of returns is gone, but born is still the same."""
    tag.put(50, 100, (100, RESERVED), scheme=SCHEME, until=HIGHEST, backs=1, backs_before=0, backs_low=40)
    command(tag.client, "ACL", "SETUSER", USER, "reset", "on", ">secret", "~*", "+@all", "-hset")
    with pytest.raises(redis.ResponseError):
        mine.floor(0, scheme="-")
    for scheme in ("", SCHEME):
        assert tag.next(scheme=scheme) == ["fenced"]
    assert tag.give_back(40, 50) == ["spent", "reign"]
    assert tag.load(RESERVED, RESERVED + 100) == ["stale", "reign"]
