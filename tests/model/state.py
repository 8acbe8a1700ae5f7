"""What the model knows: the store, the servers, the processes and what is on its way, all in one immutable value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.model.guards import INTACT, Guards
from tests.model.scripts import Hash, Node
from tests.model.store import Store

#: The id of the one store there is.
STORE = 1


class Piece(NamedTuple):
    """Numbers used+1 .. high in a process's hand: a lease, or a reservation of its own (reign 0) with its version."""

    low: int
    used: int
    high: int
    reign: int = 0
    born: int = 0
    version: int = 0


class Work(NamedTuple):
    """How far an extension has come: "opened", "behind" (at `low`, the store's max) or "reserved"."""

    done: Literal["", "opened", "behind", "reserved"] = ""
    reign: int = 0
    born: int = 0
    top: int = 0
    low: int = 0
    high: int = 0
    version: int = 0


IDLE = Work()


class Process(NamedTuple):
    """`last`: the highest number that it has seen issued. `knows`: the highest it has seen retired by `recover`."""

    way: Literal["redis", "direct", "rejoining"] = "redis"
    work: Work = IDLE
    hand: tuple[Piece, ...] = ()
    last: int = 0
    knows: int = 0


FRESH = Process()


class Message(NamedTuple):
    """Sent, not yet arrived: "load" (low, high], "giveback" or "handback" of low+1 .. high."""

    kind: Literal["load", "giveback", "handback"]
    low: int
    high: int
    reign: int = 0
    born: int = 0
    version: int = 0


class Duty(NamedTuple):
    """What an operator has begun: after "read" or "raised", `at` is the floor of a recovery; "delete" ends with one."""

    done: Literal["read", "raised", "delete"]
    at: int


class State(NamedTuple):
    """`issued`: a bit for each number. `left`: how many of each fault may still come, in the world's order.

    `restored`: the store went back, and nobody has recovered it. `journal`: the highest number reserved direct.
    `refusals`: loads and hand backs that were refused, each a gap.
    """

    store: Store
    nodes: tuple[Node, ...]
    processes: tuple[Process, ...]
    left: tuple[int, ...]
    net: tuple[Message, ...] = ()
    issued: int = 0
    backup: tuple[Store, ...] = ()
    snapshot: tuple[Hash | None, ...] = ()
    duties: tuple[Duty, ...] = ()
    retired: int = 0
    restored: bool = False
    journal: int = 0
    refusals: int = 0

    @property
    def highest(self) -> int:
        """The highest number issued."""
        return self.issued.bit_length() - 1 if self.issued else 0


#: One step: what happened, the state after it, and the promise that it broke.
Step = tuple[str, State, str]


@dataclass(frozen=True, slots=True)
class World:
    """The bounds of a search, and the guards that hold in it.

    `faults`: how many of each kind may come: see faults.py. `lease`: how many numbers are drawn ahead, 0: none.
    `stops`: processes stop in order, and give back what they hold. `strict`: Redis alone serves, and order is watched;
    otherwise each process's own, unless two masters may be alive at once. `cautious`: after a restore nobody starts
    before `recover` has ended. `after_halt`: keys are lost only once the tag is halted.
    `running`: against the rule, the issuers go on through a restore. `gap`:
    the most numbers that one event may cost, watched if it isn't 0.
    """

    faults: Mapping[str, int] = field(default_factory=dict)
    guards: Guards = INTACT
    processes: int = 2
    nodes: int = 1
    step: int = 3
    highest: int = 6
    lease: int = 0
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
    def may_split(self) -> bool:
        """Whether two masters may be alive at once."""
        return "promote" in self.faults

    def start(self) -> State:
        """Return the state in which nothing has happened yet: the first server is the others' master."""
        nodes = tuple(Node(master=not number, reign=1) for number in range(self.nodes))
        return State(Store(), nodes, (FRESH,) * self.processes, tuple(self.faults.values()))

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
    return put_node(state, at, node._replace(hash=hash and hash._replace(asked=0)))


def put_process(state: State, at: int, process: Process) -> State:
    """Return the state with that process in place."""
    return state._replace(processes=(*state.processes[:at], process, *state.processes[at + 1 :]))


def send(state: State, *messages: Message) -> State:
    """Return the state with these on their way."""
    return state._replace(net=tuple(sorted((*state.net, *messages))))


def _unused(used: set[int]) -> int:
    return min(set(range(1, len(used) + 2)) - used)


def _hashes(state: State) -> list[Hash]:
    return [hash for hash in (*(node.hash for node in state.nodes), *state.snapshot) if hash]


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
    return 0 if node.hash and node.hash.fence == node.reign else fresh_born(state)


def fresh_reign(state: State) -> int:
    """Return a reign that was never there, as far as anybody remembers."""
    named = {each.reign for each in (*state.nodes, *_pieces(state))} | {node.older for node in state.nodes}
    return _unused(named | {hash.fence for hash in _hashes(state)})


def fresh_version(state: State) -> int:
    """Return a version of the record that nobody remembers."""
    known = {each.version for each in (state.store, *state.backup)}
    return _unused(known | {each.version for each in _pieces(state)})
