"""One typed function for each Lua script of a tag: the function packs the call, and decodes the reply."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, Literal

from issuer.gateway.commands import RedisCall, evalsha, pack
from issuer_persistence.records import HIGHEST, is_id


@dataclass(frozen=True, slots=True)
class Drawn:
    """The reply of `next`. If the status is "ok", numbers low+1 .. high belong to the caller.

    Otherwise there are no numbers. "exhausted": all loaded segments are used up. "empty": there is no hash. "fenced":
    the hash is from another term. "scheme": the hash has another scheme. "over": the tag's period has ended.

    `extend`: True if the caller was elected to load the next segment. Then `max` is the end of the current segment.
    """

    status: Literal["ok", "exhausted", "empty", "fenced", "scheme", "over", "notmaster", "corrupt"]
    low: int = 0
    high: int = 0
    extend: bool = False
    max: int = 0


@dataclass(frozen=True, slots=True)
class Leased:
    """The reply of `lease`. If the status is "ok", the caller issues numbers low+1 .. high from its memory.

    `give_back` needs three values: `fence` (id of the master's term, sent as `reign`), `born` (id of the hash) and
    `backs` (how often numbers were returned before the lease was drawn). `extend`: True if the caller was elected to
    load the next segment. Then `max` is the end of the current segment. The other statuses are those of Drawn.
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
    """The reply of `once`. "ok": `number` was drawn for the idempotency key. "again": the key already had this number.

    "older": nothing was drawn, because the next number, `number` + 1, is not above `seen`, so Redis went back in time.
    `scheme`: for "again", id of the scheme with which the number was drawn. `extend`: True if the caller was elected to
    load the next segment. Then `max` is the end of the current segment. The other statuses are those of Drawn.
    """

    status: Literal["again", "ok", "older", "exhausted", "empty", "fenced", "scheme", "over", "notmaster", "corrupt"]
    number: int = 0
    extend: bool = False
    max: int = 0
    scheme: str = ""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The reply of `giveback`. "back": the numbers were returned. "spent": they were not: a gap. `why`: the reason."""

    status: Literal["back", "spent", "notmaster", "corrupt"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """The reply of `open`: state of a tag's hash. `cur`: last number drawn. `top`: highest number in the hash.

    `load` needs `reign` (id of the master's term) and `born` (id of the hash). `due`: a segment should be loaded.
    `elected`: this caller should load it. `over`: if the tag's period has ended, the server's clock in ms, else None.
    `store`, `scheme`: ids in the hash, if the status is "otherstore" or "otherscheme".
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
    """The reply of `load`. A hash has a buffer for the current segment, and one for the next.

    "current" or "next": the buffer that now has the segment. "full": both have numbers. "stale": rejected, for the
    reason `why`.
    """

    status: Literal["current", "next", "full", "stale", "notmaster", "corrupt"]
    why: str = ""


@dataclass(frozen=True, slots=True)
class Floored:
    """The reply of `floor`. `cur`: last number drawn. `top`: highest number in the hash.

    `cur_before`, `top_before`: the same before the call, None if the hash was missing or corrupt. `store`: id in the
    hash, if the status is "otherstore".
    """

    status: Literal["floored", "otherstore", "notmaster", "corrupt"]
    cur: int = 0
    top: int = 0
    cur_before: int | None = None
    top_before: int | None = None
    store: str = ""


def _scheme(scheme: str, *until: int) -> tuple[str | int, ...]:
    """Return the last arguments of a script: id of the scheme, and `until`. Without a scheme, leave out both."""
    return (scheme, *until) if scheme else ()


def draw(key: str, n: int, window: float | None, scheme: str = "", claimant: str = "") -> RedisCall[Drawn]:
    """`next`: draw up to n numbers. n: 1..2^63-1.

    `window`: maximum time, in seconds, for an elected caller to load a segment. After it, another caller can be
    elected. None: this caller is never elected. `scheme`: id of the tag's scheme or "". `claimant`: digits that name
    the caller, with which `open` recognizes its election; see `fresh_claimant`.
    """
    return evalsha("next", (key,), (n, _election(window, claimant), *_scheme(scheme)), drawn, repeatable=True)


def once(
    key: str, kept: str, window: float | None, *, scheme: str, ttl: float, seen: int, claimant: str = ""
) -> RedisCall[DrawnOnce]:
    """`once`: draw one number for an idempotency key. `kept`: Redis key that keeps the number for `ttl` seconds.

    `seen`: draw only a number above this one. 0 means any number. `window`, `scheme`, `claimant`: as in `draw`.
    """
    words = (_election(window, claimant), scheme, max(1, round(ttl * 1000)), seen)
    return evalsha("once", (key, kept), words, _drawn_once, repeatable=True)


class Draws:
    """Draw commands of one tag, packed in advance except for the count n: `of` takes 0.3 us, `draw` takes 6 us."""

    __slots__ = ("_draw", "_lease", "_tail", "one")

    def __init__(self, key: str, window: float | None, scheme: str = "", claimant: str = "") -> None:
        """`key`, `window`, `scheme`, `claimant`: as in `draw`."""
        # A packed command is split into the bytes before n (head) and the bytes after n (tail).
        self._tail = pack(_election(window, claimant), *_scheme(scheme)).partition(b"\r\n")[2]
        self.one = draw(key, 1, window, scheme, claimant).packed
        after = -len(self._tail) - len(b"$1\r\n1\r\n")
        self._draw = self.one[:after]
        self._lease = lease(key, 1, window, scheme, claimant).packed[:after]

    def of(self, n: int) -> bytes:
        """Return the packed command that draws n numbers."""
        return self._packed(self._draw, n)

    def lease(self, n: int) -> bytes:
        """Return the packed command that draws a lease of n numbers."""
        return self._packed(self._lease, n)

    def _packed(self, head: bytes, n: int) -> bytes:
        digits = b"%d" % n
        return b"%b$%d\r\n%b\r\n%b" % (head, len(digits), digits, self._tail)


def is_kept(kept: str) -> RedisCall[bool]:
    """Return whether the idempotency key whose number is at this Redis key has a number."""
    return RedisCall(pack("GET", kept), "", lambda reply: reply is not None, repeatable=True, key=kept)


def lease(key: str, n: int, window: float | None, scheme: str = "", claimant: str = "") -> RedisCall[Leased]:
    """`lease`: draw up to n numbers, which the caller then issues from its memory. Arguments: as in `draw`."""
    return evalsha("lease", (key,), (n, _election(window, claimant), *_scheme(scheme)), leased, repeatable=True)


def give_back(key: str, used: int, high: int, *, reign: str, born: str, backs: int) -> RedisCall[GivenBack]:
    """`giveback`: return numbers used+1 .. high, the rest of a lease. `used`: last number issued, or low if none was.

    `reign`, `born`, `backs`: from the lease; see Leased. Stop using the numbers before you send this command, because
    any process can draw them afterwards.
    """
    return evalsha("giveback", (key,), (used, high, reign, born, backs), _given_back)


def fresh_claimant() -> str:
    """Return random digits that name a caller in elections."""
    return str(int.from_bytes(os.urandom(6)))


def _election(window: float | None, claimant: str) -> str:
    if window is None:
        return "-1"
    return f"{round(window * 1000)}{claimant and f'.0000{claimant}'}"


#: How a caller of `open` takes part in the election of a loader. "claim": elect me if nobody is elected, or if I am:
#: by a draw, or by an earlier claim. "look": don't elect me. "resign": if I am elected, I can't load a segment, so
#: elect the next caller that claims.
Role = Literal["claim", "look", "resign"]


def open(
    key: str,
    born: str,
    store: str,
    window: float,
    role: Role,
    *,
    scheme: str = "",
    until: int = HIGHEST,
    claimant: str = "",
) -> RedisCall[Opened]:
    """`open`: prepare the hash for the current term, read its state, and elect a loader.

    `born`: a new random word. The hash's id is made from it if the hash is prepared now. `store`: id of the store.
    `window`, `scheme`, `claimant`: as in `draw`. `role`: how this caller takes part in the election. `until`: end of
    the tag's period in ms of the server's clock. It is stored if the hash is prepared now. 0: not known yet. 2^63-1:
    the tag has no periods.
    """
    words = (born, store, _election(window, claimant), role, *_scheme(scheme, until))
    return evalsha("open", (key,), words, _opened)


def load(key: str, low: int, high: int, mark: int, *, reign: str, born: str) -> RedisCall[Loaded]:
    """`load`: put the numbers low+1 .. high into the hash. When number `mark` is drawn, the next segment is requested.

    `reign`, `born`: from the reply of `open`.
    """
    return evalsha("load", (key,), (low, high, mark, reign, born), _loaded)


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
    """`floor`: skip all numbers up to `at`, for ever.

    `manner`: "keep" rejects a corrupt hash, "repair" replaces it. `scheme`: id of the tag's scheme from now on. ""
    removes the scheme, None does not change it. `born`, `store`, `until`: as in `open`.
    """
    words = () if scheme is None else (scheme or "-", until)
    return evalsha("floor", (key,), (at, born, store, manner, *words), _floored)


def drawn(reply: Any) -> Drawn:
    """Decode a reply of `next`."""
    if reply[0] != b"ok":
        return Drawn(reply[0].decode())
    if len(reply) == 3:  # noqa: PLR2004 - low and high, no election
        return Drawn("ok", int(reply[1]), int(reply[2]))
    return Drawn("ok", int(reply[1]), int(reply[2]), extend=True, max=int(reply[4]))


def leased(reply: Any) -> Leased:
    """Decode a reply of `lease`."""
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


#: Fields of a tag's hash, as `read` returns them. NUMBERS: those of them that are numbers. `cur`, `max`, `mark`: last
#: number drawn, last number and threshold of the current segment. `next_...`: the same for the next one. `backs`: how
#: often numbers were returned. `backs_before`, `backs_low`: the value of `backs` before the newest series of returns,
#: and the lowest number that it reached (see lua/giveback.lua).
NUMBERS = ("cur", "max", "mark", "next_cur", "next_max", "next_mark", "backs", "backs_before", "backs_low")
FIELDS = (*NUMBERS, "fence", "born", "store", "scheme")


@dataclass(frozen=True, slots=True)
class Hash:
    """A tag's hash in Redis. Missing fields are None. `corrupt`: name of a field that is not a whole number.

    No number can be drawn from a hash of another term of the Redis master. So `read_hash` returns such a hash without
    its numbers. `lost`: highest of these numbers.
    """

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
    lost: int = 0

    @property
    def top(self) -> int:
        """The highest number in the valid fields of the hash, in any term. 0 if no field is valid."""
        numbers = (self.cur, self.max, self.mark, self.next_cur, self.next_max, self.lost)
        return max(filter(None, numbers), default=0)

    @property
    def remaining(self) -> int:
        """How many numbers can still be drawn."""
        return (self.max or 0) - (self.cur or 0) + (self.next_max or 0) - (self.next_cur or 0)

    @property
    def due(self) -> bool:
        """Whether the next draw finds no numbers, or a segment should be loaded: buffer 2 is free."""
        if self.cur is None or self.mark is None:
            return True
        return self.next_max is None and self.cur >= self.mark

    @property
    def names_store(self) -> bool:
        """Whether `store` has the form of a store's id."""
        return self.store is not None and is_id(self.store)


def read_hash(key: str) -> RedisCall[Hash]:
    """`read`: read the hash of a tag. If it is from another term, its numbers are missing: nobody can draw them."""
    return evalsha("read", (key,), (), lambda reply: _both(reply)[1], repeatable=True)


def read_both(key: str) -> RedisCall[tuple[Hash, Hash]]:
    """`read`: read the hash of a tag, and return it with its numbers in whatever term, and as `read_hash` does."""
    return evalsha("read", (key,), (), _both, repeatable=True)


def read_raw(key: str) -> RedisCall[Hash]:
    """Return a command that reads the hash of a tag with its numbers, in whatever term. It also works on a replica."""
    return RedisCall(pack("HMGET", key, *FIELDS), "", _hash, repeatable=True, key=key)


def _both(reply: Any) -> tuple[Hash, Hash]:
    status, *fields = reply
    hash = _hash(fields)
    if status == b"current":
        return hash, hash
    none = dict.fromkeys(("cur", "max", "mark", "next_cur", "next_max", "next_mark"))
    return hash, replace(hash, **none, lost=hash.top)


def _hash(reply: Any) -> Hash:
    words = [None if word is None else word.decode(errors="replace") for word in reply]
    numbers = [int(word) if word and _whole(word) else None for word in words[: len(NUMBERS)]]
    checked = zip(NUMBERS, words, numbers, strict=False)
    corrupt = next((name for name, word, number in checked if word is not None and number is None), None)
    cur, max, mark, next_cur, next_max, next_mark, *_ = numbers
    fence, born, store, scheme = words[len(NUMBERS) :]
    return Hash(cur, max, mark, next_cur, next_max, next_mark, fence, born, store, scheme, corrupt)


def _whole(word: str) -> bool:
    """Return True if the scripts accept the word as a number: digits without a leading zero, up to 2^63-1."""
    if not (word.isascii() and word.isdigit() and len(word) <= len(str(HIGHEST))):
        return False
    return str(int(word)) == word and int(word) <= HIGHEST
