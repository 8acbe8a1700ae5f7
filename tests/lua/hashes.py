"""A tag's hash on a real server, called through the raw scripts: every reply as it comes, a list of strings.

Loads and returns carry the reign and the born of now, unless a test says others.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import redis

from issuer.core.supply.local_buffer import threshold
from issuer.gateway.commands import NAMES, script
from issuer_persistence.records import HIGHEST
from tests.waiting import until

KEY = "issuer:{orders}"
STORE = "0123456789abcdef01234567"
OTHER_STORE = "fedcba9876543210fedcba98"
OTHER_REIGN = "0123456789" * 4
BORN = "born-1"
WINDOW = 60_000

INTACT: Mapping[str, str] = {name: script(name).text for name in NAMES}

Change = tuple[str, str]


def mutated(**changes: list[Change]) -> Mapping[str, str]:
    """Return the scripts with parts replaced: `mutated(next=[(old, new)])`. Each `old` must be there exactly once."""
    texts = dict(INTACT)
    for name, pairs in changes.items():
        for old, new in pairs:
            assert texts[name].count(old) == 1, f"the guard of lua/{name}.lua is not where it was: {old}"
            texts[name] = texts[name].replace(old, new)
    return texts


def at_moment(ms: int) -> Mapping[str, str]:
    """Return the scripts as they run while the server's clock shows that millisecond."""
    clock = f"{{'{ms // 1000}', '{ms % 1000 * 1000}'}}"
    return {name: text.replace("redis.call('TIME')", clock) for name, text in INTACT.items()}


def command(client: Any, *words: str) -> Any:
    """Send a command that redis-py has no typed method for."""
    return client.execute_command(*words)


@dataclass
class TagHash:
    """`client` decodes its replies. `texts`: the scripts, intact or mutated."""

    client: redis.Redis
    texts: Mapping[str, str] = field(default_factory=lambda: INTACT)
    key: str = KEY

    def call(self, name: str, *args: str | int) -> list[str]:
        reply: Any = self.client.eval(self.texts[name], 1, self.key, *map(str, args))
        return list(reply)

    def next(self, n: int | str = 1, window: int | str = WINDOW, scheme: str = "") -> list[str]:
        return self.call("next", n, window, scheme)

    def once(
        self, key: str = "k", *, window: int | str = WINDOW, scheme: str = "", ttl: int | str = 60_000, seen: int = 0
    ) -> list[str]:
        kept = f"{self.key}:once:{key}"
        words = map(str, (window, scheme, ttl, seen))
        reply: Any = self.client.eval(self.texts["once"], 2, self.key, kept, *words)
        return list(reply)

    def lease(self, n: int | str = 1, window: int | str = WINDOW, scheme: str = "") -> list[str]:
        return self.call("lease", n, window, scheme)

    def give_back(
        self, used: int | str, high: int | str, *, reign: str = "", born: str | None = None, backs: int | str = 0
    ) -> list[str]:
        return self.call("giveback", used, high, reign or self.reign(), self.born() if born is None else born, backs)

    def open(  # noqa: PLR0917 - as the script has them
        self,
        born: str = BORN,
        store: str = STORE,
        window: int | str = WINDOW,
        role: str = "claim",
        scheme: str = "",
        until: int = HIGHEST,
    ) -> list[str]:
        return self.call("open", born, store, window, role, scheme, until)

    def load(
        self, low: int | str, high: int | str, at: int | str | None = None, *, reign: str = "", born: str | None = None
    ) -> list[str]:
        if at is None:
            at = threshold(int(low), int(high))
        return self.call("load", low, high, at, reign or self.reign(), self.born() if born is None else born)

    def floor(  # noqa: PLR0917 - as the script has them
        self,
        at: int | str,
        born: str = "born-2",
        store: str = STORE,
        manner: str = "keep",
        scheme: str = "",
        until: int = HIGHEST,
    ) -> list[str]:
        return self.call("floor", at, born, store, manner, scheme, until)

    def replicated(self) -> None:
        """Wait until a replica has all that was written. One that is in sync may be sent nothing for a second."""
        until(lambda: self.client.wait(1, 1000) == 1, 60, "a replica has heard of it")

    def reign(self) -> str:
        info: Any = self.client.info("replication")
        return str(info["master_replid"])

    def born(self) -> str:
        born: Any = self.client.hget(self.key, "born")
        return str(born or "")

    def now(self) -> int:
        seconds: Any = self.client.time()
        return int(seconds[0]) * 1000 + int(seconds[1]) // 1000

    def fields(self) -> dict[str, str]:
        found: Any = self.client.hgetall(self.key)
        return dict(found)

    def field(self, name: str) -> str | None:
        return self.fields().get(name)

    def set(self, **fields: str | int) -> None:
        self.client.hset(self.key, mapping={name: str(value) for name, value in fields.items()})

    def floored(self, at: int, born: str = "born-2") -> dict[str, object]:
        """Return what `open` and `floor` leave of a hash without numbers."""
        floor: dict[str, object] = dict.fromkeys(("cur", "max", "mark"), str(at))
        return {**floor, "fence": self.reign(), "born": Made(born), "store": STORE}

    def put(self, cur: int, max: int, next: tuple[int, int] | None = None, /, **fields: str | int) -> None:
        """Make the hash anew: (cur, max] in buffer 1, its mark a fifth into that, `next` in buffer 2; `fields` win."""
        made: dict[str, str | int] = {"cur": cur, "max": max, "mark": threshold(cur, max) if max > cur else max}
        if next:
            made |= {"next_cur": next[0], "next_max": next[1], "next_mark": threshold(*next)}
        self.client.delete(self.key)
        self.set(**{**made, "fence": self.reign(), "born": BORN, "store": STORE, **fields})


@dataclass
class Made:
    """Equal to any born that a script has made of that word."""

    word: str

    def __eq__(self, born: object) -> bool:
        return isinstance(born, str) and re.fullmatch(rf"{self.word}\.\d{{10}}\.\d{{1,6}}", born) is not None

    __hash__ = None  # type: ignore[assignment]


class _Hash(Protocol):
    def fields(self) -> dict[str, str]: ...


@contextmanager
def unchanged(hash: _Hash) -> Iterator[None]:
    """See that what is done leaves the whole hash as it is."""
    before = hash.fields()
    yield
    assert hash.fields() == before


def numbers(reply: list[str]) -> range:
    """The numbers that an `ok` gives."""
    assert reply[0] == "ok", reply
    return range(int(reply[1]) + 1, int(reply[2]) + 1)


#: What a field may hold that no script ever wrote there. None: the field is missing.
GARBAGE: Mapping[str, str | bytes | None] = {
    "missing": None,
    "empty": "",
    "a word": "ten",
    "a float": "10.0",
    "an exponent": "1e3",
    "a leading zero": "010",
    "two zeros": "00",
    "a space before": " 10",
    "a space after": "10 ",
    "a newline": "10\n",
    "a NUL": b"10\0",
    "a sign": "+10",
    "minus": "-1",
    "quotes": '"10"',
    "hexadecimal": "0x10",
    "not a number": "nan",
    "infinite": "inf",
    "20 digits": "1" * 20,
    "300 digits": "1" * 300,
    "2^63": str(HIGHEST + 1),
    "19 nines": "9" * 19,
    "Arabic digits": "\u0661\u0660",
    "fullwidth digits": "\uff11\uff10",
    "no UTF-8": b"\xff\xfe",
}
