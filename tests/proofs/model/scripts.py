"""The seven scripts, on one hash: what each of them replies, and what it leaves.

The search explores these functions, and the walks hold them against the real scripts. A number is an int; reigns,
borns and stores are ints too, compared for equality alone.
"""

from typing import NamedTuple

from issuer.core.supply.local_buffer import threshold
from issuer.gateway import tag_scripts
from tests.proofs.model.guards import Guards
from tests.proofs.model.values import quick

#: A field that isn't there.
NONE = -1

#: Whether an election stands: nobody was elected, somebody was, or it was too long ago (or the clock went back).
#: `claimant` is who was, NONE if it gave no name.
NOBODY, STANDS, LAPSED = 0, 1, 2

#: A tag's scheme: the counters after which, one after the other, it began to make other numbers. (): it is plain.
Scheme = tuple[int, ...]

#: What keys have had: a key, its number, and the scheme under which it was drawn.
Kept = tuple[tuple[int, int, Scheme], ...]

#: When a period ends that never does, and when one that has yet to be found out.
NEVER, UNKNOWN = 2**63 - 1, 0

#: A status, and what comes with it.
Reply = tuple[str | int | Scheme, ...]


@quick
class Hash(NamedTuple):
    """A tag's hash. `asked` says how the election stands, and `claimant` who was elected: the real field has its time.

    `until`: when its period ends, by the server's clock. A plain hash has none. `backs`, `backs_before`: names in the
    search, counts in the walks.
    """

    cur: int
    max: int
    mark: int
    fence: int
    born: int
    store: int
    next_cur: int = NONE
    next_max: int = NONE
    next_mark: int = NONE
    asked: int = NOBODY
    scheme: Scheme = ()
    until: int = UNKNOWN
    backs: int = 0
    backs_before: int = 0
    backs_low: int = 0
    #: The node of a Cluster for which it was armed. 0: none is named.
    node: int = 0
    claimant: int = NONE

    @property
    def top(self) -> int:
        return self.max if self.next_max == NONE else self.next_max


@quick
class Node(NamedTuple):
    """A Redis server. `older`: what master_replid2 holds. A replica has the reign of its master."""

    master: bool
    reign: int
    older: int = NONE
    hash: Hash | None = None
    #: The highest number issued anywhere when its reign began, or through it since.
    last: int = 0
    #: Its clock stands in that period.
    clock: int = 0
    kept: Kept = ()
    #: Its id in a Cluster. 0: there is no Cluster.
    id: int = 0


Left = tuple[Reply, Hash | None]


def _same_reign(node: Node, hash: Hash, guards: Guards) -> bool:
    if guards.node and hash.node not in (0, node.id):
        return False
    return hash.fence == node.reign or (not guards.replid and hash.fence == node.older != NONE)


def armed(node: Node, at: int, born: int, store: int, *, scheme: Scheme, until: int) -> Hash:
    """The hash holds no numbers any more, only the floor."""
    return Hash(at, at, at, node.reign, born, store, scheme=scheme, until=until if scheme else UNKNOWN, node=node.id)


def _second(hash: Hash) -> Hash:
    """Buffer 2 takes the place of buffer 1."""
    return _first(hash)._replace(cur=hash.next_cur, max=hash.next_max, mark=hash.next_mark)


def _unasked(hash: Hash) -> Hash:
    return hash._replace(asked=NOBODY, claimant=NONE)


def _first(hash: Hash) -> Hash:
    return hash._replace(next_cur=NONE, next_max=NONE, next_mark=NONE)


def half_done(hash: Hash, guards: Guards) -> tuple[tuple[str, Hash], ...]:
    """What a script leaves that ends after its first write, which deletes. The others leave what they found."""
    bare = _unasked(_first(hash))._replace(scheme=(), until=UNKNOWN)
    return (
        ("a draw at the switch, or a floor", _unasked(_first(hash))),
        ("an arming", bare._replace(fence=NONE, node=0) if guards.arm_fence else bare),
    )


def _refused(node: Node, guards: Guards, scheme: Scheme, *, leasing: bool) -> Reply | None:
    """Whether this hash may be drawn from: what a draw is told if not."""
    hash = node.hash
    if guards.role and not node.master:
        return ("notmaster",)
    if hash is None:
        return ("empty",)
    if guards.fence and not _same_reign(node, hash, guards):
        return ("fenced",)
    if guards.draw_scheme and hash.scheme != scheme:
        return ("scheme", hash.scheme)
    if guards.draw_over and scheme and node.clock >= hash.until:
        return ("over", node.clock)
    return ("corrupt",) if leasing and hash.born == NONE else None


def _drawn(
    node: Node, guards: Guards, n: int, scheme: Scheme, *, electing: bool, leasing: bool = False, claimant: int = NONE
) -> Left:
    hash = node.hash
    refused = _refused(node, guards, scheme, leasing=leasing)
    if refused or hash is None:
        return refused or ("empty",), hash
    if hash.cur >= hash.max:
        if hash.next_max != NONE:
            hash = _unasked(_second(hash))
        elif guards.reserved_only:
            return ("exhausted",), hash
        else:
            hash = hash._replace(max=hash.max + n)
    low = hash.cur
    high = min(low + n, hash.max) if guards.clamp else low + n
    hash = hash._replace(cur=high)
    granted: Reply = ("ok", low, high, hash.fence, hash.born, hash.backs) if leasing else ("ok", low, high)
    if hash.next_max != NONE or not electing or high < hash.mark or hash.asked == STANDS:
        return granted, hash
    return (*granted, "extend", hash.max), hash._replace(asked=STANDS, claimant=claimant)


def next(node: Node, guards: Guards, n: int, scheme: Scheme = (), *, electing: bool, claimant: int = NONE) -> Left:
    """`next`; without `electing` the window is negative."""
    return _drawn(node, guards, n, scheme, electing=electing, claimant=claimant)


def lease(node: Node, guards: Guards, n: int, scheme: Scheme = (), *, electing: bool, claimant: int = NONE) -> Left:
    """`lease`, likewise."""
    return _drawn(node, guards, n, scheme, electing=electing, leasing=True, claimant=claimant)


def once(
    node: Node, guards: Guards, key: int, scheme: Scheme = (), *, electing: bool, seen: int = 0, claimant: int = NONE
) -> tuple[Reply, Node]:
    """`once`, likewise; and the server after it, with what is kept for the key."""
    if guards.role and not node.master:
        return ("notmaster",), node
    for kept, number, under in node.kept:
        if kept == key and guards.once_kept:
            return ("again", number, under), node
    reply, hash = _drawn(node, guards, 1, scheme, electing=electing, claimant=claimant)
    if node.hash and hash and reply[0] == "ok" and hash.cur <= seen:
        return ("older", hash.cur - 1), node
    node = node._replace(hash=hash)
    if reply[0] != "ok":
        return reply, node
    others = [each for each in node.kept if each[0] != key]
    had = (key, node.hash.cur if node.hash else NONE, scheme)
    return reply, node._replace(kept=tuple(sorted([*others, had])))


def open(
    node: Node,
    guards: Guards,
    born: int,
    store: int,
    role: tag_scripts.Role,
    *,
    scheme: Scheme = (),
    until: int = NEVER,
    claimant: int = NONE,
) -> Left:
    """`open`. Its reply: reign, born, top, cur, due, elected; and the clock, if the period is over."""
    hash = node.hash
    if guards.role and not node.master:
        return ("notmaster",), hash
    if hash and hash.store not in (NONE, store):
        return ("otherstore", hash.store), hash
    lacking = hash is None or not _same_reign(node, hash, guards) or NONE in (hash.born, hash.store)
    if hash and hash.scheme != scheme and (guards.arm_scheme if lacking else guards.open_scheme):
        return ("otherscheme", hash.scheme), hash
    if hash is None or (lacking and guards.arm_empties):
        hash = armed(node, hash.top if hash else 0, born, store, scheme=scheme, until=until)
    elif lacking:
        hash = hash._replace(fence=node.reign, node=node.id, born=born, store=store, scheme=scheme, until=until)
    over = bool(scheme) and node.clock >= hash.until
    due = over or (hash.next_max == NONE and hash.cur >= hash.mark)
    if role == "resign" and hash.claimant == claimant:
        hash = _unasked(hash)
    elected = due and role == "claim" and (hash.asked != STANDS or hash.claimant == claimant != NONE)
    if elected:
        hash = hash._replace(asked=STANDS, claimant=claimant)
    told: Reply = ("open", node.reign, hash.born, hash.top, hash.cur, int(due), int(elected))
    return (*told, node.clock) if over else told, hash


def load(node: Node, guards: Guards, low: int, high: int, *, reign: int, born: int) -> Left:  # noqa: PLR0911 - statuses
    """`load`."""
    hash = node.hash
    if guards.role and not node.master:
        return ("notmaster",), hash
    if hash is None:
        return ("stale", "missing"), None
    if guards.load_reign and (reign != node.reign or not _same_reign(node, hash, guards)):
        return ("stale", "reign"), hash
    if guards.load_born and hash.born != born:
        return ("stale", "born"), hash
    if guards.load_top and low < hash.top:
        return ("stale", "below"), hash
    if guards.load_full and hash.next_max != NONE:
        return ("full",), hash
    hash = _unasked(hash)
    if hash.cur < hash.max:
        return ("next",), hash._replace(next_cur=low, next_max=high, next_mark=threshold(low, high))
    return ("current",), hash._replace(cur=low, max=high, mark=threshold(low, high))


def give_back(  # noqa: PLR0911 - statuses
    node: Node, guards: Guards, used: int, high: int, *, reign: int, born: int, backs: int, after: int
) -> Left:
    """`giveback`; it leaves `after` as backs."""
    hash = node.hash
    if guards.role and not node.master:
        return ("notmaster",), hash
    if hash is None:
        return ("spent", "missing"), None
    if guards.give_reign and (reign != node.reign or not _same_reign(node, hash, guards)):
        return ("spent", "reign"), hash
    if guards.give_born and hash.born != born:
        return ("spent", "born"), hash
    if guards.give_cur and hash.cur != high:
        return ("spent", "cur"), hash
    row = backs == hash.backs_before and (hash.backs_low >= high or not guards.give_low)
    if guards.give_backs and hash.backs != backs and not row:
        return ("spent", "backs"), hash
    hash = _unasked(hash) if used < hash.mark else hash
    return ("back",), hash._replace(cur=used, backs=after, backs_before=backs, backs_low=used)


def floor(
    node: Node,
    guards: Guards,
    at: int,
    born: int,
    store: int,
    *,
    scheme: Scheme = (),
    until: int = NEVER,
) -> Left:
    """`floor`; without a scheme that stays. Its reply: cur and top, now and before; NONE if the hash was missing."""
    hash = node.hash
    if guards.role and not node.master:
        return ("notmaster",), hash
    if hash and hash.store not in (NONE, store):
        return ("otherstore", hash.store), hash
    before = (hash.cur, hash.top) if hash else (NONE, NONE)
    if not guards.floor_stays:
        return ("floored", 0, 0, *before), None
    written = born if guards.floor_born or hash is None else hash.born
    if not scheme:
        scheme, until = (hash.scheme, hash.until) if hash else ((), UNKNOWN)
    same = hash is not None and (hash.scheme == scheme or not guards.floor_drops)
    if hash is None or not same or not _same_reign(node, hash, guards) or at >= hash.top:
        hash = armed(node, max(at, hash.top if hash else 0), written, store, scheme=scheme, until=until)
    else:
        if at >= hash.max:
            hash = _second(hash)
        hash = _unasked(hash)._replace(cur=max(hash.cur, at), born=written, store=store)
        hash = hash._replace(scheme=scheme, until=until if scheme else UNKNOWN)
    return ("floored", hash.cur, hash.top, *before), hash
