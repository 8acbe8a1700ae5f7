"""The scripts of a tag, one typed function each: Python values in, a packed call out, the reply decoded.

No other module sees KEYS, ARGV, bytes or status words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from issuer.gateway.commands import RedisCall, pack
from issuer.gateway.scripts import script
from issuer_persistence.records import HIGHEST, is_id

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The answer of `next`. Numbers low+1 .. high are the caller's if status is "ok".

    `extend`: this caller is elected to load the next segment; `max` then is the end of the present one.
    """

    status: Literal["ok", "exhausted", "empty", "fenced", "scheme", "over", "notmaster", "corrupt"]
    low: int = 0
    high: int = 0
    extend: bool = False
    max: int = 0


@dataclass(frozen=True, slots=True)
class Leased:
    """The answer of `lease`. Numbers low+1 .. high are the caller's if status is "ok", to serve from its own memory.

    `fence`, `born`, `backs`: the reign and the arming that they were drawn under, and how often numbers had come back
    by then; `give_back` carries them as reign, born and backs.
    `extend`, `max`: as in Drawn.
    """

    status: Literal["ok", "exhausted", "empty", "fenced", "scheme", "over", "notmaster", "corrupt"]
    low: int = 0
    high: int = 0
    fence: str = ""
    born: str = ""
    backs: int = 0
    extend: bool = False
    max: int = 0


@dataclass(frozen=True, slots=True)
class DrawnOnce:
    """The answer of `once`: the number of the caller's key if status is "ok", or "again": it had that one before.

    "older": the number after `number` would have been drawn, which the caller has seen. `extend`, `max`: as in Drawn.
    `scheme`: the id of the one that it was drawn under then, with "again".
    """

    status: Literal["again", "ok", "older", "exhausted", "empty", "fenced", "scheme", "over", "notmaster", "corrupt"]
    number: int = 0
    extend: bool = False
    max: int = 0
    scheme: str = ""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The answer of `giveback`: "back", or "spent" and `why`; then the tail is a gap."""

    status: Literal["back", "spent", "notmaster", "corrupt"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """The answer of `open`: where the hash stands. A load carries `reign` and `born`, and begins at or above `top`.

    `due`: a segment should be loaded. `elected`: by this caller. `over`: the server's clock in ms if the tag's period
    has ended. `store`, `scheme`: the other's id, with "otherstore" and "otherscheme".
    """

    status: Literal["open", "otherstore", "otherscheme", "notmaster", "corrupt"]
    reign: str = ""
    born: str = ""
    top: int = 0
    cur: int = 0
    due: bool = False
    elected: bool = False
    over: int | None = None
    store: str = ""
    scheme: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The answer of `load`: "current" or "next" is the buffer it went to. `why`: what made it stale."""

    status: Literal["current", "next", "full", "stale", "notmaster", "corrupt"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Floored:
    """The answer of `floor`: where the hash stands now, and stood before (None: it was missing or corrupt)."""

    status: Literal["floored", "otherstore", "notmaster", "corrupt"]
    cur: int = 0
    top: int = 0
    cur_before: int | None = None
    top_before: int | None = None
    store: str = ""


def _call(
    name: str, key: str, args: tuple[str | int, ...], decode: Callable[[Any], T_co], *, repeatable: bool = False
) -> RedisCall[T_co]:
    source = script(name)
    return RedisCall(pack("EVALSHA", source.sha, 1, key, *args), source.text, decode, repeatable, key)


def _scheme(scheme: str, *until: int) -> tuple[str | int, ...]:
    """Return the last arguments of a call: none for a tag without a scheme, as most are."""
    return (scheme, *until) if scheme else ()


def draw(key: str, n: int, window: float | None, scheme: str = "") -> RedisCall[Drawn]:
    """`next`: draw up to n numbers, 1..2^63-1; an election stands for `window` seconds. None: never elect me.

    `scheme`: the id of the tag's scheme, "" for none.
    """
    return _call("next", key, (n, _election(window), *_scheme(scheme)), drawn, repeatable=True)


def once(key: str, kept: str, window: float | None, *, scheme: str, ttl: float, seen: int) -> RedisCall[DrawnOnce]:
    """`once`: draw one number for the caller's key, kept under `kept` for `ttl` seconds; the same if it comes again.

    `seen`: draw none up to this one; 0: any.
    """
    source = script("once")
    words = ("EVALSHA", source.sha, 2, key, kept, _election(window), scheme, max(1, round(ttl * 1000)), seen)
    return RedisCall(pack(*words), source.text, _drawn_once, repeatable=True, key=key)


class Draws:
    """The draws of one tag, packed but for n: a draw of the hot path costs 0.3 us of packing, where `draw` takes 6."""

    __slots__ = ("_head", "_tail", "one")

    def __init__(self, key: str, window: float | None, scheme: str = "") -> None:
        """`key`, `window` and `scheme` as in `draw`."""
        # The one place where a packed command is taken apart: before and after the n; what follows it is known.
        tail = pack(_election(window), *_scheme(scheme)).partition(b"\r\n")[2]
        self.one = draw(key, 1, window, scheme).packed
        self._head = self.one[: -len(tail) - len(b"$1\r\n1\r\n")]
        self._tail = tail

    def of(self, n: int) -> bytes:
        """Return the packed draw of n numbers."""
        digits = b"%d" % n
        return b"%b$%d\r\n%b\r\n%b" % (self._head, len(digits), digits, self._tail)


def lease(key: str, n: int, window: float | None, scheme: str = "") -> RedisCall[Leased]:
    """`lease`: draw up to n numbers, as `draw` does, to be served from the caller's memory."""
    return _call("lease", key, (n, _election(window), *_scheme(scheme)), _leased, repeatable=True)


def give_back(key: str, used: int, high: int, *, reign: str, born: str, backs: int) -> RedisCall[GivenBack]:
    """`giveback`: the tail of a lease, used+1 .. high, comes back. `used`: the lease's low if no number was used.

    Forget the tail before this is sent: from then on any process may draw it.
    """
    return _call("giveback", key, (used, high, reign, born, backs), _given_back)


def _election(window: float | None) -> int:
    return -1 if window is None else round(window * 1000)


#: The part that a caller of `open` takes in the election of a loader.
Role = Literal["claim", "mine", "look", "resign"]


def open(
    key: str, born: str, store: str, window: float, role: Role, *, scheme: str = "", until: int = HIGHEST
) -> RedisCall[Opened]:
    """`open`: arm the hash for this reign, tell where it stands, elect a loader.

    `scheme`: the id of the tag's scheme, "" for none; `until`: the end of its period if the hash is armed now, in ms of
    the server's clock: 0 if it has yet to be found out, 2^63-1 without periods.
    """
    return _call("open", key, (born, store, round(window * 1000), role, *_scheme(scheme, until)), _opened)


def load(key: str, low: int, high: int, mark: int, *, reign: str, born: str) -> RedisCall[Loaded]:
    """`load`: put (low, high] into the hash."""
    return _call("load", key, (low, high, mark, reign, born), _loaded)


def floor(
    key: str,
    at: int,
    born: str,
    store: str,
    manner: Literal["keep", "repair"],
    *,
    scheme: str | None = None,
    until: int = HIGHEST,
) -> RedisCall[Floored]:
    """`floor`: never again a number up to `at`.

    `scheme`: the id of the tag's scheme from now on, "" for none, None to leave it; `until`: the end of its period, as
    in `open`.
    """
    words = () if scheme is None else (scheme or "-", until)
    return _call("floor", key, (at, born, store, manner, *words), _floored)


def drawn(reply: Any) -> Drawn:
    """Decode a reply of `next`."""
    if reply[0] != b"ok":
        return Drawn(reply[0].decode())
    if len(reply) == 3:  # noqa: PLR2004 - low and high, no election
        return Drawn("ok", int(reply[1]), int(reply[2]))
    return Drawn("ok", int(reply[1]), int(reply[2]), extend=True, max=int(reply[4]))


def _leased(reply: Any) -> Leased:
    if reply[0] != b"ok":
        return Leased(reply[0].decode())
    low, high, fence, born, backs, *extend = reply[1:]
    leased = int(low), int(high), fence.decode(), born.decode(errors="replace"), int(backs)
    return Leased("ok", *leased, extend=True, max=int(extend[1])) if extend else Leased("ok", *leased)


def _drawn_once(reply: Any) -> DrawnOnce:
    if reply[0] == b"again":
        return DrawnOnce("again", int(reply[1]), scheme=reply[2].decode(errors="replace"))
    if reply[0] == b"older":
        return DrawnOnce("older", int(reply[1]))
    found = drawn(reply)
    return DrawnOnce(found.status, found.high, found.extend, found.max)


def _given_back(reply: Any) -> GivenBack:
    return GivenBack(*(word.decode() for word in reply))


def _opened(reply: Any) -> Opened:
    status, *rest = [word.decode(errors="replace") for word in reply]
    if status == "open":
        reign, born, top, cur, due, elected, *clock = rest
        return Opened(
            "open", reign, born, int(top), int(cur), due == "1", elected == "1", int(clock[0]) if clock else None
        )
    if status == "otherstore":
        return Opened("otherstore", store=rest[0])
    if status == "otherscheme":
        return Opened("otherscheme", scheme=rest[0])
    return Opened(status)


def _loaded(reply: Any) -> Loaded:
    return Loaded(*(word.decode() for word in reply))


def _floored(reply: Any) -> Floored:
    status, *rest = [word.decode(errors="replace") for word in reply]
    if status == "floored":
        cur, top, cur_before, top_before = rest
        return Floored(
            "floored",
            int(cur),
            int(top),
            int(cur_before) if cur_before else None,
            int(top_before) if top_before else None,
        )
    if status == "otherstore":
        return Floored("otherstore", store=rest[0])
    return Floored(status)


#: The fields of the hash that hold numbers, and those that `peek` reads after them.
NUMBERS = ("cur", "max", "mark", "next_cur", "next_max", "next_mark", "backs", "backs_before", "backs_low")
FIELDS = (*NUMBERS, "fence", "born", "store", "scheme")


@dataclass(frozen=True, slots=True)
class Hash:
    """A tag's hash as it lies in Redis; None for what isn't there. `corrupt` names a field that is no whole number."""

    cur: int | None
    max: int | None
    mark: int | None
    next_cur: int | None
    next_max: int | None
    next_mark: int | None
    fence: str | None
    born: str | None
    store: str | None
    scheme: str | None = None
    corrupt: str | None = None

    @property
    def top(self) -> int:
        """The highest number that it holds, as far as its fields can be read; 0 if it holds none."""
        return max(filter(None, (self.cur, self.max, self.mark, self.next_cur, self.next_max)), default=0)

    @property
    def names_store(self) -> bool:
        """Whether `store` has the form of a store's id; what has another form names none, and is garbage."""
        return self.store is not None and is_id(self.store)


def read_hash(key: str) -> RedisCall[Hash]:
    """Read the hash for people to look at: no script, nothing changed."""
    return RedisCall(pack("HMGET", key, *FIELDS), "", _hash, repeatable=True, key=key)


def _hash(reply: Any) -> Hash:
    words = [None if word is None else word.decode(errors="replace") for word in reply]
    numbers: list[int | None] = []
    corrupt = None
    for name, word in zip(NUMBERS, words, strict=False):
        fine = word is None or _whole(word)
        numbers.append(int(word) if word is not None and fine else None)
        corrupt = corrupt or (None if fine else name)
    cur, max, mark, next_cur, next_max, next_mark, *_ = numbers
    fence, born, store, scheme = words[len(NUMBERS) :]
    return Hash(cur, max, mark, next_cur, next_max, next_mark, fence, born, store, scheme, corrupt)


def _whole(word: str) -> bool:
    """Say whether the scripts would take it for a number: plain digits without a leading zero, up to 2^63-1."""
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(HIGHEST))):
        return False
    return str(int(word)) == word and int(word) <= HIGHEST
