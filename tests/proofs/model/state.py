"""What the model knows: the store, the servers, the processes and what is on its way, all in one immutable value."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from tests.proofs.model.guards import INTACT, Guards
from tests.proofs.model.scripts import NEVER, NONE, UNKNOWN, Hash, Node, Scheme
from tests.proofs.model.store import NO_LIMIT, Store
from tests.proofs.model.values import quick

#: The id of the one store there is.
STORE = 1

#: How many bits of a counter number within a period: 40 in issuer.core.periods.
PERIOD_BITS = 2


@quick
class Piece(NamedTuple):
    """Numbers used+1 .. high in a process's hand: a lease, or a reservation of its own (reign 0) with its version."""

    low: int
    used: int
    high: int
    reign: int = 0
    born: int = 0
    version: int = 0
    backs: int = NONE


@quick
class Work(NamedTuple):
    """How far an extension has come.

    "opened"; "behind": at `low`, the store's max; "reserved"; "other": the hash has this scheme, and not the process's;
    "over": the period is, and `low` is the one that the clock shows; "floor": one at `low` for this scheme comes next.
    """

    done: Literal["", "opened", "behind", "reserved", "other", "over", "floor"] = ""
    reign: int = 0
    born: int = 0
    top: int = 0
    low: int = 0
    high: int = 0
    version: int = 0
    scheme: Scheme = ()


IDLE = Work()


@quick
class Process(NamedTuple):
    """`last`: the highest number that it has seen issued; `beyond`: in ranges that it reserved for callers.

    `knows`: the highest it has seen retired by `recover`. `scheme`: the one it makes numbers by.
    """

    way: Literal["redis", "direct", "rejoining"] = "redis"
    work: Work = IDLE
    hand: tuple[Piece, ...] = ()
    last: int = 0
    knows: int = 0
    beyond: int = 0
    scheme: Scheme = ()

    @property
    def taken(self) -> int:
        """No store stands below this, unless it went back in time."""
        return max(self.last, self.beyond)


FRESH = Process()


@quick
class Message(NamedTuple):
    """Sent, not yet arrived: "load" (low, high], "giveback" or "handback" of low+1 .. high."""

    kind: Literal["load", "giveback", "handback"]
    low: int
    high: int
    reign: int = 0
    born: int = 0
    version: int = 0
    backs: int = NONE


Named = TypeVar("Named", Piece, Message)


@quick
class Duty(NamedTuple):
    """What an operator has begun: after "read" or "raised", `at` is the floor of a recovery; "delete" ends with one.

    "seen": the record from which another scheme will be made; "changed": the hash wants a floor with that scheme.
    """

    done: Literal["read", "raised", "delete", "seen", "changed"]
    at: int = 0
    scheme: Scheme = ()
    version: int = 0


@quick
class State(NamedTuple):
    """`issued`: a bit for each number that users see. `had`: what callers' keys have had.

    `left`: how many of each fault may still come, in the world's order. `restored`: the store went back, and nobody has
    recovered it. `journal`: the highest number reserved direct. `refusals`: loads and hand backs that were refused,
    each a gap.
    """

    store: Store
    nodes: tuple[Node, ...]
    processes: tuple[Process, ...]
    left: tuple[int, ...]
    net: tuple[Message, ...] = ()
    issued: int = 0
    backup: tuple[Store, ...] = ()
    snapshot: tuple[Node, ...] = ()
    duties: tuple[Duty, ...] = ()
    retired: int = 0
    restored: bool = False
    journal: int = 0
    refusals: int = 0
    had: tuple[tuple[int, int], ...] = ()

    @property
    def highest(self) -> int:
        """The highest number issued."""
        return self.issued.bit_length() - 1 if self.issued else 0


#: One step: what happened, the state after it, and the promise that it broke.
Step = tuple[str, State, str]


@dataclass(frozen=True, slots=True)
class World:
    """The bounds of a search, and the guards that hold in it.

    `faults`: how many of each kind may come: see faults.py and operators.py. `lease`: how many numbers are drawn ahead,
    0: none; `draw`: how many at once; `range`: how many are reserved for a caller, 0: none; `keys`: how many callers'
    keys there are. `wanted`: how many numbers a caller may want at once, that a segment is made as large; 0: none does.
    `limit`, `scheme`: the tag's, when it is made. `periods`: its numbers begin anew in each, and what
    users see tells which. `stops`: processes stop in order, and give back what they hold. `strict`: Redis alone serves,
    and order is watched; otherwise each process's own, unless two masters may be alive at once. `cautious`: after a
    restore nobody starts before `recover` has ended. `after_halt`: keys are lost only once the tag is halted.
    `running`: against the rule, the issuers go on through a restore. A store that may be restored without a "backup"
    goes back to its beginning. `gap`: the most numbers that one event may cost, watched if it isn't 0.
    """

    faults: Mapping[str, int] = field(default_factory=dict)
    guards: Guards = INTACT
    processes: int = 2
    nodes: int = 1
    step: int = 3
    highest: int = 6
    lease: int = 0
    draw: int = 1
    range: int = 0
    wanted: int = 0
    keys: int = 0
    limit: int = NO_LIMIT
    scheme: Scheme = ()
    periods: bool = False
    stops: bool = False
    strict: bool = True
    cautious: bool = True
    after_halt: bool = False
    running: bool = False
    gap: int = 0

    @property
    def remembers(self) -> bool:
        """Whether it matters which numbers a process has seen."""
        return not self.strict or "restore" in self.faults

    @property
    def forgets(self) -> bool:
        """Whether Redis may lose what it has kept."""
        return not self.faults.keys().isdisjoint(("flush", "rollback", "promote", "takeover", "forget"))

    @property
    def until(self) -> int:
        """Until when a hash that a process arms may be drawn from."""
        return UNKNOWN if self.periods and self.guards.period_unknown else NEVER

    @property
    def may_split(self) -> bool:
        """Whether two masters may be alive at once."""
        return not self.faults.keys().isdisjoint(("promote", "takeover"))

    def start(self) -> State:
        """Return the state in which nothing has happened yet: the first server is the others' master."""
        named = "takeover" in self.faults
        nodes = tuple(Node(master=not each, reign=1, id=named * (each + 1)) for each in range(self.nodes))
        record = Store(scheme=self.scheme, limit=self.limit)
        backup = (record,) if "restore" in self.faults and "backup" not in self.faults else ()
        return State(record, nodes, (FRESH,) * self.processes, tuple(self.faults.values()), backup=backup)

    def may(self, fault: str, state: State) -> bool:
        """Whether that fault may still come."""
        # Asked at every step, and most worlds know few faults.
        if fault not in self.faults:
            return False
        return any(left and name == fault for name, left in zip(self.faults, state.left, strict=True))

    def spent(self, fault: str, state: State) -> State:
        """Return the state with one fault of that kind fewer to come."""
        left = tuple(left - (name == fault) for name, left in zip(self.faults, state.left, strict=True))
        return state._replace(left=left)


def put_node(state: State, at: int, node: Node) -> State:
    """Return the state with that server in place."""
    return state._replace(nodes=(*state.nodes[:at], node, *state.nodes[at + 1 :]))


def put_hash(state: State, at: int, hash: Hash | None) -> State:
    """Return the state with that hash on the server; who is elected decides nothing here, so it isn't kept."""
    node = state.nodes[at]
    if hash and hash.asked:
        hash = hash._replace(asked=0)
    return put_node(state, at, node._replace(hash=hash))


def put_process(state: State, at: int, process: Process) -> State:
    """Return the state with that process in place."""
    return state._replace(processes=(*state.processes[:at], process, *state.processes[at + 1 :]))


def send(state: State, *messages: Message) -> State:
    """Return the state with these on their way."""
    return state._replace(net=tuple(sorted((*state.net, *messages))))


def _unused(used: set[int]) -> int:
    return min(set(range(1, len(used) + 2)) - used)


def _hashes(state: State) -> list[Hash]:
    return [node.hash for node in (*state.nodes, *state.snapshot) if node.hash]


def _pieces(state: State) -> list[Piece | Work | Message]:
    held: list[Piece | Work | Message] = [*state.net]
    for process in state.processes:
        held += [*process.hand, process.work]
    return held


def fresh_born(state: State) -> int:
    """Return a born that nobody can compare with another one: random ones don't repeat."""
    return _unused({each.born for each in (*_hashes(state), *_pieces(state))})


def born_for(state: State, node: Node) -> int:
    """Return the born that an `open` on that server carries: a fresh one, or any if nothing is armed by it."""
    hash = node.hash
    return 0 if hash and (hash.fence, hash.node) == (node.reign, node.id) else fresh_born(state)


def fresh_reign(state: State) -> int:
    """Return a reign that was never there, as far as anybody remembers."""
    named = {each.reign for each in (*state.nodes, *_pieces(state))} | {node.older for node in state.nodes}
    return _unused(named | {hash.fence for hash in _hashes(state)})


def fresh_backs(state: State, *known: int) -> int:
    """Return a count of what has come back that nobody remembers: it only rises, so none comes again."""
    return _unused({*known, *_remembered(state), *_counts(state)})


def _remembered(state: State) -> set[int]:
    """Return the counts that leases were drawn under, held or on their way back."""
    held = {each.backs for process in state.processes for each in process.hand if each.reign}
    return held | {each.backs for each in state.net if each.kind == "giveback"}


def _counts(state: State) -> Iterator[int]:
    for hash in _hashes(state):
        yield hash.backs
        yield hash.backs_before


def backs_renamed(state: State) -> State:
    """Return the state with the counts renamed: what no hash has any more is refused, whatever it was.

    Of the leases in a hand the last one's count is sent, so the others' are forgotten.
    """
    # Called after every step, and nearly all of a state has its names already: what stays is passed on as it is.
    hands = [_last_backs(process.hand) for process in state.processes]
    remembered = {piece.backs for hand in hands for piece in hand if piece.backs != NONE}
    remembered |= {message.backs for message in state.net if message.backs != NONE}
    names = _names(state, remembered)
    other = len(names)
    names[NONE] = NONE

    def renamed(node: Node) -> Node:
        hash = node.hash
        if hash is None:
            return node
        backs = before = names[hash.backs]
        low = 0
        if hash.backs_before in remembered:
            before, low = names[hash.backs_before], hash.backs_low
        if (backs, before, low) == (hash.backs, hash.backs_before, hash.backs_low):
            return node
        return node._replace(hash=hash._replace(backs=backs, backs_before=before, backs_low=low))

    for at, hand in enumerate(hands):
        if hand:
            named = tuple([_named(piece, names.get(piece.backs, other)) for piece in hand])
            if named != state.processes[at].hand:
                state = put_process(state, at, state.processes[at]._replace(hand=named))
    net = tuple(sorted([_named(message, names.get(message.backs, other)) for message in state.net]))
    nodes, snapshot = tuple(map(renamed, state.nodes)), tuple(map(renamed, state.snapshot))
    if (net, nodes, snapshot) == (state.net, state.nodes, state.snapshot):
        return state
    return state._replace(net=net, nodes=nodes, snapshot=snapshot)


def _names(state: State, remembered: set[int]) -> dict[int, int]:
    names: dict[int, int] = {}
    for hash in _hashes(state):
        names.setdefault(hash.backs, len(names))
        if hash.backs_before in remembered:
            names.setdefault(hash.backs_before, len(names))
    return names


def _named(each: Named, backs: int) -> Named:
    return each if each.backs == backs else each._replace(backs=backs)


def _last_backs(hand: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """Return the hand with no other count than the last lease's."""
    last = max((place for place, piece in enumerate(hand) if piece.reign), default=0)
    if not last:
        return hand
    return (*(_named(piece, NONE) for piece in hand[:last]), *hand[last:])


def fresh_version(state: State) -> int:
    """Return a version of the record that nobody remembers."""
    known = {each.version for each in (state.store, *state.backup)} | {each.version for each in state.duties}
    return _unused(known | {each.version for each in _pieces(state)})
