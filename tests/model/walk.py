"""A random walk: the same steps on the model and on real servers with the real scripts and a real store.

After each step the replies must agree, and so must the hashes on both servers and the store's record. Nothing hangs on
time: an election stands for eleven days, and where one shall have lapsed the walk moves its time.
"""

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from issuer.core.arithmetic import mark
from persistence.errors import Halted, MaxBehind
from persistence.memory import MemoryStore, Snapshot
from persistence.records import Reservation
from tests.lua.hashes import INTACT, TagHash
from tests.model import scripts, store
from tests.model.guards import INTACT as ALL_GUARDS
from tests.model.guards import Guards
from tests.model.scripts import LAPSED, NOBODY, NONE, Hash, Node, Reply
from tests.model.state import STORE
from tests.model.store import Store
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer

WINDOW = 10**9
TAG = "orders"
STEP = 10
REMEMBERED = 6

#: How often each step comes, of all of them together.
STEPS = {
    "next": 30,
    "lease": 14,
    "give_back": 12,
    "lease_and_give_back": 8,
    "open": 14,
    "reserve": 10,
    "load": 12,
    "extend": 12,
    "floor": 3,
    "hand_back": 3,
    "other_store": 1,
    "election_lapses": 3,
    "key_is_lost": 1,
    "field_is_lost": 1,
    "store_halts": 1,
    "store_recovers": 2,
    "backup": 1,
    "restore": 1,
}
#: These take 50 to 500 ms each.
SERVER_STEPS = {"snapshot": 2, "rollback": 2, "wipe": 1, "follow": 2, "cut": 2, "promote": 3}


class DisagreementError(AssertionError):
    """The model and the real thing went different ways."""


class Walk:
    """Two servers, a store, and the model of them. `changing`: how many of 1000 steps befall the servers themselves."""

    #: How often each step comes.
    steps: Mapping[str, int] = STEPS
    #: In how many draws of ten the caller may be elected.
    electing = 7

    def __init__(
        self,
        servers: list[RedisServer],
        seed: int,
        texts: Mapping[str, str] = INTACT,
        guards: Guards = ALL_GUARDS,
        changing: int = 25,
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.guards = guards
        self.changing = changing
        self.servers = servers
        self.texts = texts
        self.log: list[str] = []
        self.names: dict[str, int] = {}
        self.count = 0
        self.store = MemoryStore()
        self.store_id = self.store.store_id(timeout=1)
        assert self.named(self.store_id) == STORE
        self.tags = [self.tag(server) for server in servers]
        self.follows = [False] * len(servers)
        self.nodes = [Node(True, self.named(tag.reign())) for tag in self.tags]
        self.dumps: list[list[tuple[Path, Hash | None]]] = [[] for _ in servers]
        # What processes remember, the newest last; what is too old to be of use, too.
        self.opened: list[tuple[int, str, int]] = []
        self.leased: list[tuple[int, int, str, int]] = []
        self.reserved: list[tuple[Reservation, int]] = []
        made = self.store.create(TAG, above=0, step=STEP, limit=2**62, order="trend", description="", timeout=1)
        self.record = Store(0, self.named(made.version))
        self.backups: list[tuple[Snapshot, Store]] = []
        #: Every status seen, so that a test can ask for all of them.
        self.seen: set[str] = set()

    def tag(self, server: RedisServer) -> TagHash:
        return TagHash(server.client(decode_responses=True), self.texts)

    def named(self, name: str) -> int:
        """Return the model's number for a reign, a born or a version."""
        return self.names.setdefault(name, len(self.names) + 1)

    def fresh(self) -> str:
        self.count += 1
        return f"fresh-{self.count}"

    # ------------------------------------------------------------------------------------------------ walking

    def go(self, steps: int) -> None:
        for _ in range(steps):
            table = SERVER_STEPS if self.chance.randrange(1000) < self.changing else self.steps
            (name,) = self.chance.choices(list(table), list(table.values()))
            self.log.append(name)
            step: Callable[[int], None] = getattr(self, name)
            step(self.chance.randrange(len(self.nodes)))
            self.compare()

    def agree(self, what: str, real: object, model: object) -> None:
        if real != model:
            last = "\n".join(self.log[-12:])
            raise DisagreementError(
                f"seed {self.seed}, step {len(self.log)}: {what}\n  real:  {real}\n  model: {model}\n"
                f"The last steps:\n{last}"
            )

    def compare(self) -> None:
        for at, tag in enumerate(self.tags):
            if self.follows[at]:
                self.tags[1 - at].client.wait(1, 5000)
            real = {**tag.fields(), **({"asked": "set"} if "asked" in tag.fields() else {})}
            self.agree(f"the hash on {'AB'[at]}", real, self.fields(self.nodes[at].hash))
        kept = self.store.get(TAG, timeout=1)
        assert kept is not None
        record = Store(kept.max, self.named(kept.version), kept.halted, kept.deleted)
        self.agree("the store's record", record, self.record)

    def fields(self, hash: Hash | None) -> dict[str, str]:
        if hash is None:
            return {}
        names = {number: name for name, number in self.names.items()}
        numbers = hash._asdict()
        found = {
            name: str(value)
            for name, value in numbers.items()
            if value != NONE and name not in ("fence", "born", "store", "asked")
        }
        found |= {name: names[numbers[name]] for name in ("fence", "born", "store") if numbers[name] != NONE}
        return found | ({"asked": "set"} if hash.asked != NOBODY else {})

    def script(self, at: int, name: str, real: list[str], left: scripts.Left, *, words: tuple[int, ...] = ()) -> Reply:
        """Compare the replies. `words`: where in them stand names."""
        reply, hash = left
        self.log[-1] = f"{name} on {'AB'[at]} -> {' '.join(map(str, real))}"
        self.seen.add(f"{name} {real[0]}" + (f" {real[1]}" if real[0] in ("stale", "spent") else ""))
        given = tuple(
            self.named(word) if place in words else int(word) if place and word.isdigit() else word or NONE
            for place, word in enumerate(real)
        )
        self.agree(f"the reply of {name} on {'AB'[at]}", given, reply)
        self.put(at, hash)
        return reply

    def put(self, at: int, hash: Hash | None) -> None:
        """Set the hash of a server, and of the one that follows it."""
        self.nodes[at] = self.nodes[at]._replace(hash=hash)
        if len(self.nodes) > 1 and self.follows[1 - at]:
            self.nodes[1 - at] = self.nodes[1 - at]._replace(hash=hash)

    def pick(self, remembered: list[Any]) -> Any:
        """Mostly the newest."""
        return remembered[-1] if self.chance.random() < 0.6 else self.chance.choice(remembered)

    # ------------------------------------------------------------------------------------------------ the scripts

    def next(self, at: int) -> None:
        n, electing = self.chance.randint(1, 6), self.chance.randrange(10) < self.electing
        real = self.tags[at].next(n, WINDOW if electing else -1)
        self.script(at, "next", real, scripts.next(self.nodes[at], self.guards, n, electing=electing))

    def lease(self, at: int) -> None:
        n, electing = self.chance.randint(1, 6), self.chance.randrange(10) < self.electing
        real = self.tags[at].lease(n, WINDOW if electing else -1)
        left = scripts.lease(self.nodes[at], self.guards, n, electing=electing)
        self.script(at, "lease", real, left, words=(3, 4))
        if real[0] == "ok":
            low, high, born = int(real[1]), int(real[2]), self.named(real[4])
            self.leased = [*self.leased, (low, high, real[3], born)][-REMEMBERED:]

    def give_back(self, at: int) -> None:
        if not self.leased:
            return
        low, high, reign, born = self.pick(self.leased)
        used = self.chance.randint(low, high - 1)
        names = {number: name for name, number in self.names.items()}
        real = self.tags[at].give_back(used, high, reign=reign, born=names[born])
        left = scripts.give_back(self.nodes[at], self.guards, used, high, reign=self.named(reign), born=born)
        self.script(at, "giveback", real, left)

    def lease_and_give_back(self, at: int) -> None:
        """Before anybody else draws, as a process does that stops right away."""
        self.lease(at)
        self.log.append("give_back")
        self.give_back(at)

    def open(self, at: int) -> None:
        role, born = self.chance.choice(("claim", "claim", "mine", "look", "resign")), self.fresh()
        real = self.tags[at].open(born, self.store_id, WINDOW, role)
        left = scripts.open(self.nodes[at], self.guards, self.named(born), STORE, role)  # type: ignore[arg-type]  # one of four words
        self.script(at, "open", real, left, words=(1, 2) if real[0] == "open" else ())
        if real[0] == "open":
            self.opened = [*self.opened, (int(real[3]), real[1], self.named(real[2]))][-REMEMBERED:]

    def load(self, at: int) -> None:
        if not self.opened or not self.reserved:
            return
        held, _ = self.pick(self.reserved)
        _, reign, born = self.pick(self.opened)
        names = {number: name for name, number in self.names.items()}
        real = self.tags[at].load(held.low, held.high, mark(held.low, held.high), reign=reign, born=names[born])
        left = scripts.load(self.nodes[at], self.guards, held.low, held.high, reign=self.named(reign), born=born)
        self.script(at, "load", real, left)

    def extend(self, at: int) -> None:
        """Before anybody else comes between."""
        for step in (self.open, self.reserve, self.load):
            step(at)
            self.log.append(step.__name__)

    def floor(self, at: int) -> None:
        hash, born = self.nodes[at].hash, self.fresh()
        lowest, highest = (max(0, hash.cur - 5), hash.top + 3) if hash else (0, self.record.max + 5)
        floor = self.chance.randint(lowest, highest)
        real = self.tags[at].floor(floor, born, self.store_id)
        left = scripts.floor(self.nodes[at], self.guards, floor, self.named(born), STORE)
        self.script(at, "floor", real, left)

    def other_store(self, at: int) -> None:
        """Somebody else's store on the same prefix is refused, unless there is no hash yet: then nothing is tried."""
        hash = self.nodes[at].hash
        if hash is None or hash.store == NONE:
            return
        real = self.tags[at].open(self.fresh(), "store-2", WINDOW, "claim")
        left = scripts.open(self.nodes[at], self.guards, NONE, self.named("store-2"), "claim")
        self.script(at, "open", real, left, words=(1,) if real[0] == "otherstore" else ())

    # ------------------------------------------------------------------------------------------------ tampering

    def masters(self) -> list[int]:
        return [at for at, node in enumerate(self.nodes) if node.master]

    def election_lapses(self, _: int) -> None:
        """It was too long ago, or the server's clock went back."""
        at = self.chance.choice(self.masters())
        hash = self.nodes[at].hash
        if hash:
            self.tags[at].set(asked=self.chance.choice((0, self.tags[at].now() + 10 * WINDOW)))
            self.put(at, hash._replace(asked=LAPSED))

    def key_is_lost(self, _: int) -> None:
        at = self.chance.choice(self.masters())
        self.tags[at].client.delete(self.tags[at].key)
        self.put(at, None)

    def field_is_lost(self, _: int) -> None:
        at = self.chance.choice(self.masters())
        hash = self.nodes[at].hash
        if hash:
            name = self.chance.choice(("fence", "born", "store"))
            self.tags[at].client.hdel(self.tags[at].key, name)
            self.put(at, hash._replace(**{name: NONE}))

    # ------------------------------------------------------------------------------------------------ the store

    def version(self) -> int:
        """Return the version that the store has written just now."""
        real = self.store.get(TAG, timeout=1)
        assert real is not None
        return self.named(real.version)

    def reserve(self, _: int) -> None:
        at_least = self.pick(self.opened)[0] if self.opened else 0
        held: Reservation | None = None
        try:
            held = self.store.reserve(TAG, None, at_least=at_least, reason="load", timeout=1)
            outcome = "ok"
        except MaxBehind:
            outcome = "behind"
        except Halted:
            outcome = "halted"
        self.seen.add(f"reserve {outcome}")
        expected, after = store.reserve(self.record, self.guards, STEP, at_least, self.version())
        self.agree("reserve", outcome, expected)
        self.record = after
        if held is not None:
            self.reserved = [*self.reserved, (held, after.version)][-REMEMBERED:]

    def hand_back(self, _: int) -> None:
        if not self.reserved:
            return
        held, seen = self.pick(self.reserved)
        used = self.chance.randint(held.low, held.high - 1)
        done = self.store.hand_back([held], used, timeout=1)
        self.seen.add(f"hand_back {done}")
        expected, after = store.hand_back(self.record, self.guards, used, held.high, seen=seen, version=self.version())
        self.agree("hand_back", done, expected)
        self.record = after

    def store_halts(self, _: int) -> None:
        below = self.record.max + self.chance.randint(-1, 1)
        self.store.halt(TAG, below=max(0, below), timeout=1)
        self.record = store.halt(self.record, max(0, below), self.version())

    def store_recovers(self, _: int) -> None:
        at_least = max([self.record.max, *(node.hash.top for node in self.nodes if node.hash)])
        self.store.recover(TAG, at_least=at_least, timeout=1)
        self.record = store.recover(self.record, at_least, self.version())

    def backup(self, _: int) -> None:
        self.backups = [*self.backups, (self.store.snapshot(), self.record)][-2:]

    def restore(self, _: int) -> None:
        if self.backups:
            snapshot, self.record = self.chance.choice(self.backups)
            self.store.restore(snapshot)

    # ------------------------------------------------------------------------------------------------ the servers

    def reigns(self, *, fresh: int | None = None) -> None:
        """Read who rules where. The reign of `fresh` is one that was never seen."""
        for at, tag in enumerate(self.tags):
            reign = tag.reign()
            if at == fresh:
                self.agree(f"a reign of {'AB'[at]} that was there before", reign in self.names, False)
            self.nodes[at] = self.nodes[at]._replace(reign=self.named(reign))

    def snapshot(self, at: int) -> None:
        self.dumps[at] = [*self.dumps[at], (self.servers[at].snapshot(), self.nodes[at].hash)][-2:]

    def rollback(self, at: int) -> None:
        if not self.dumps[at]:
            return
        dump, hash = self.chance.choice(self.dumps[at])
        self.alone(at)
        self.servers[at].restore(dump)
        self.started(at, hash)

    def wipe(self, at: int) -> None:
        self.alone(at)
        self.servers[at].wipe().start()
        self.started(at, None)

    def started(self, at: int, hash: Hash | None) -> None:
        self.tags[at] = self.tag(self.servers[at])
        self.nodes[at] = self.nodes[at]._replace(master=True, hash=hash)
        self.follows[at] = False
        self.reigns(fresh=at)

    def alone(self, at: int) -> None:
        """Nobody follows that server any more."""
        if len(self.nodes) > 1 and self.follows[1 - at]:
            self.cut(1 - at)

    def follow(self, at: int) -> None:
        """The server becomes a replica of the other one, if that is a master, and copies all that it has."""
        if len(self.nodes) < 2 or self.follows[at] or not self.nodes[1 - at].master:
            return
        self.servers[at].replicaof(self.servers[1 - at])
        self.follows[at] = True
        self.nodes[at] = self.nodes[at]._replace(master=False, hash=self.nodes[1 - at].hash)
        self.reigns()

    def cut(self, at: int) -> None:
        """A replica hears no more of its master: from now on it lags."""
        if not self.follows[at]:
            return
        self.tags[1 - at].client.wait(1, 5000)
        self.tags[at].client.execute_command("REPLICAOF", "127.0.0.1", free_port())  # type: ignore[no-untyped-call]
        self.follows[at] = False
        self.reigns()

    def promote(self, at: int) -> None:
        """A replica becomes a master; the old one is still alive."""
        if self.nodes[at].master:
            return
        if self.follows[at]:
            self.tags[1 - at].client.wait(1, 5000)
        self.servers[at].promote()
        self.follows[at] = False
        self.nodes[at] = self.nodes[at]._replace(master=True)
        self.reigns(fresh=at)
