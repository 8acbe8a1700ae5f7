"""A random walk: the same steps on the model and on real servers with the real scripts and a real store.

After each step the replies must agree, and so must the hashes on both servers and the store's record. Nothing hangs on
time: an election stands for eleven days, and where one shall have lapsed the walk moves its time.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, Literal

from issuer.core.supply.local_buffer import threshold
from issuer.gateway import tag_scripts
from tests.lua.hashes import INTACT, TagHash
from tests.proofs.model import scripts, store
from tests.proofs.model.scripts import LAPSED, NEVER, NOBODY, NONE, UNKNOWN, Hash, Kept, Node, Reply, Scheme
from tests.proofs.model.state import STORE
from tests.proofs.model.store_walk import REMEMBERED, TAG, StoreWalk
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

WINDOW = 10**9
KEYS = 2
#: Longer than any walk takes, in milliseconds.
LONG = 10**9

#: How often each step comes, of all of them together.
STEPS = {
    "next": 30,
    "once": 8,
    "lease": 14,
    "give_back": 12,
    "lease_and_give_back": 14,
    "open": 14,
    "reserve": 10,
    "reserve_range": 5,
    "load": 12,
    "extend": 12,
    "floor": 3,
    "hand_back": 3,
    "election_lapses": 3,
    "period_ends": 1,
    "kept_is_lost": 1,
    "key_is_lost": 1,
    "field_is_lost": 3,
    "read": 3,
    "change": 2,
    "floor_with_scheme": 4,
    "raise_to": 1,
    "set_limit": 4,
    "store_halts": 1,
    "store_recovers": 2,
    "backup": 1,
    "restore": 1,
}
#: These take 50 to 500 ms each.
SERVER_STEPS = {"snapshot": 2, "rollback": 2, "wipe": 1, "follow": 2, "cut": 2, "promote": 3}


def named(claimant: int) -> str:
    """Return the decimals that name a claimant."""
    return "" if claimant == NONE else f".0000{claimant}"


def window(claimant: int) -> str:
    return f"{WINDOW}{named(claimant)}"


class Walk(StoreWalk):
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
        changing: int = 25,
    ) -> None:
        super().__init__(seed)
        self.changing = changing
        self.servers = servers
        self.texts = texts
        self.count = 0
        #: Apart from `chance`, so that the other steps come as they came without it.
        self.doubt = Random(seed)
        self.tags = [self.tag(server) for server in servers]
        self.follows = [False] * len(servers)
        #: Periods end long before or long after this moment, so the model's clock may stand still.
        self.clock = self.tags[0].now()
        self.nodes = [Node(True, self.named(tag.reign()), clock=self.clock) for tag in self.tags]
        self.dumps: list[list[tuple[Path, Node]]] = [[] for _ in servers]
        self.leased: list[tuple[int, int, str, int, int]] = []

    def tag(self, server: RedisServer) -> TagHash:
        return TagHash(server.client(decode_responses=True), self.texts)

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

    def compare(self) -> None:
        for at, tag in enumerate(self.tags):
            if self.follows[at]:
                self.synced(1 - at)
            real = tag.fields()
            if "asked" in real:
                real["asked"] = f".{real['asked'].partition('.')[2]}"
            self.agree(f"the hash on {'AB'[at]}", real, self.fields(self.nodes[at].hash))
            kept: Any = tag.client.mget([f"{tag.key}:once:{key}" for key in range(1, KEYS + 1)])
            had = {key: f"{number}:{self.ids[under]}" for key, number, under in self.nodes[at].kept}
            self.agree(f"the keys' numbers on {'AB'[at]}", kept, [had.get(key) for key in range(1, KEYS + 1)])
        self.compare_record()

    def fields(self, hash: Hash | None) -> dict[str, str]:
        if hash is None:
            return {}
        numbers = hash._asdict()
        found = {
            name: str(value)
            for name, value in numbers.items()
            if value != NONE
            and name not in ("fence", "node", "born", "store", "asked", "claimant", "scheme", "until")
            and "backs" not in name
        }
        found |= {name: self.name(numbers[name]) for name in ("fence", "born", "store") if numbers[name] != NONE}
        if hash.scheme:
            found |= {"scheme": self.ids[hash.scheme], "until": str(hash.until)}
        if hash.backs:
            found |= {name: str(value) for name, value in numbers.items() if "backs" in name}
        return found | ({"asked": named(hash.claimant) or "."} if hash.asked != NOBODY else {})

    def script(self, at: int, name: str, real: list[str], left: scripts.Left, *, words: tuple[int, ...] = ()) -> None:
        """Compare the replies, and take over the hash. `words`: where in them stand names."""
        reply, hash = left
        self.told(at, name, real, reply, words)
        self.put(at, hash)

    def told(self, at: int, name: str, real: list[str], reply: Reply, words: tuple[int, ...] = ()) -> None:
        self.log[-1] = f"{name} on {'AB'[at]} -> {' '.join(map(str, real))}"
        self.seen.add(f"{name} {real[0]}" + (f" {real[1]}" if real[0] in ("stale", "spent") else ""))
        schemes = {"scheme": 1, "otherscheme": 1, "again": 2}
        clocks = {"over": 1, "open": 7}
        given: list[str | int | Scheme] = []
        for place, word in enumerate(real):
            if place == schemes.get(real[0]):
                given.append(self.scheme_of(word))
            elif place == clocks.get(real[0]):
                given.append(self.clock)
            elif place in words:
                given.append(self.named(word))
            else:
                given.append(int(word) if place and word.isdigit() else word or NONE)
        self.agree(f"the reply of {name} on {'AB'[at]}", tuple(given), reply)

    def knows(self) -> Scheme:
        """Return the scheme that a caller knows: mostly the present one."""
        return self.record.scheme if self.chance.random() < 0.8 else self.chance.choice(list(self.ids))

    def claims(self) -> int:
        """Return who a caller says that it is in an election, NONE if it gives no name."""
        return self.doubt.choice((NONE, 1, 2))

    def ends(self) -> int:
        """Return when a period ends."""
        return self.chance.choice((UNKNOWN, self.clock - LONG, self.clock + LONG, NEVER, NEVER))

    def put(self, at: int, hash: Hash | None, kept: Kept | None = None) -> None:
        """Set the hash of a server, and of the one that follows it; and what is kept there, if that is given."""
        node = self.nodes[at]._replace(hash=hash)
        node = node if kept is None else node._replace(kept=kept)
        self.nodes[at] = node
        if len(self.nodes) > 1 and self.follows[1 - at]:
            self.nodes[1 - at] = self.nodes[1 - at]._replace(hash=node.hash, kept=node.kept)

    # ------------------------------------------------------------------------------------------------ the scripts

    def next(self, at: int, name: Literal["next", "lease"] = "next") -> None:
        n, electing = self.chance.randint(1, 6), self.chance.randrange(10) < self.electing
        known, claimant = self.knows(), self.claims()
        real = self.tags[at].call(name, n, window(claimant) if electing else -1, self.ids[known])
        draw = scripts.lease if name == "lease" else scripts.next
        left = draw(self.nodes[at], self.guards, n, known, electing=electing, claimant=claimant)
        self.script(at, name, real, left, words=(3, 4) if name == "lease" else ())
        if name == "lease" and real[0] == "ok":
            low, high, born = int(real[1]), int(real[2]), self.named(real[4])
            self.leased = [*self.leased, (low, high, real[3], born, int(real[5]))][-REMEMBERED:]

    def once(self, at: int) -> None:
        key, electing = self.chance.randint(1, KEYS), self.chance.randrange(10) < self.electing
        known, claimant = self.knows(), self.claims()
        hash = self.nodes[at].hash
        seen = hash.cur + (self.doubt.random() < 0.4) if hash else 0
        claim, id = window(claimant) if electing else -1, self.ids[known]
        real = self.tags[at].once(str(key), window=claim, scheme=id, ttl=LONG, seen=seen)
        reply, after = scripts.once(
            self.nodes[at], self.guards, key, known, electing=electing, seen=seen, claimant=claimant
        )
        self.told(at, "once", real, reply)
        self.put(at, after.hash, after.kept)

    def lease(self, at: int) -> None:
        self.next(at, "lease")

    def give_back(self, at: int) -> None:
        if not self.leased:
            return
        low, high, reign, born, backs = self.pick(self.leased)
        used = self.chance.randint(low, high - 1)
        real = self.tags[at].give_back(used, high, reign=reign, born=self.name(born), backs=backs)
        hash = self.nodes[at].hash
        seen = {"reign": self.named(reign), "born": born, "backs": backs, "after": hash.backs + 1 if hash else 0}
        left = scripts.give_back(self.nodes[at], self.guards, used, high, **seen)
        self.script(at, "giveback", real, left)

    def lease_and_give_back(self, at: int) -> None:
        """Before anybody else draws, as a process does that stops right away."""
        self.lease(at)
        self.log.append("give_back")
        self.give_back(at)

    def open(self, at: int) -> None:
        roles: tuple[tag_scripts.Role, ...] = ("claim", "claim", "claim", "look", "resign")
        role, born, claimant = self.chance.choice(roles), self.fresh(), self.claims()
        known, until = self.knows(), self.ends()
        real = self.tags[at].open(born, self.store_id, window(claimant), role, self.ids[known], until)
        made = self.made_of(born, at)
        left = scripts.open(
            self.nodes[at], self.guards, made, STORE, role, scheme=known, until=until, claimant=claimant
        )
        self.script(at, "open", real, left, words=(1, 2) if real[0] == "open" else ())
        if real[0] == "open":
            self.opened = [*self.opened, (int(real[3]), real[1], self.named(real[2]))][-REMEMBERED:]

    def load(self, at: int) -> None:
        if not self.opened or not self.reserved:
            return
        held, _ = self.pick(self.reserved)
        _, reign, born = self.pick(self.opened)
        real = self.tags[at].load(
            held.low, held.high, threshold(held.low, held.high), reign=reign, born=self.name(born)
        )
        left = scripts.load(self.nodes[at], self.guards, held.low, held.high, reign=self.named(reign), born=born)
        self.script(at, "load", real, left)

    def extend(self, at: int) -> None:
        """Before anybody else comes between."""
        for step in (self.open, self.reserve, self.load):
            step(at)
            self.log.append(step.__name__)

    def floor(self, at: int, scheme: Scheme = (), until: int = NEVER) -> None:
        hash, born = self.nodes[at].hash, self.fresh()
        lowest, highest = (max(0, hash.cur - 5), hash.top + 3) if hash else (0, self.record.max + 5)
        floor = self.chance.randint(lowest, highest)
        real = self.tags[at].floor(floor, born, self.store_id, "keep", self.ids[scheme], until)
        left = scripts.floor(
            self.nodes[at], self.guards, floor, self.made_of(born, at), STORE, scheme=scheme, until=until
        )
        self.script(at, "floor", real, left)

    def floor_with_scheme(self, at: int) -> None:
        """A change of the scheme, or a period that begins."""
        self.floor(at, self.knows(), self.ends())

    def made_of(self, word: str, at: int) -> int:
        """Return the model's number for the born that the script has just made of a word, if it did."""
        born = self.tags[at].born()
        return self.named(born if born.startswith(f"{word}.") else word)

    # ------------------------------------------------------------------------------------------------ tampering

    def masters(self) -> list[int]:
        return [at for at, node in enumerate(self.nodes) if node.master]

    def election_lapses(self, _: int) -> None:
        """It was too long ago, or the server's clock went back."""
        at = self.chance.choice(self.masters())
        hash = self.nodes[at].hash
        if hash:
            when, name = self.chance.choice((0, self.tags[at].now() + 10 * WINDOW)), named(hash.claimant)
            self.tags[at].set(asked=f"{when}{name}")
            self.put(at, hash._replace(asked=LAPSED))

    def period_ends(self, _: int) -> None:
        at = self.chance.choice(self.masters())
        hash = self.nodes[at].hash
        if hash and hash.scheme:
            self.tags[at].set(until=self.clock - LONG)
            self.put(at, hash._replace(until=self.clock - LONG))

    def kept_is_lost(self, _: int) -> None:
        """Its time is over, or it was evicted."""
        at = self.chance.choice(self.masters())
        node = self.nodes[at]
        if node.kept:
            self.tags[at].client.delete(f"{self.tags[at].key}:once:{node.kept[0][0]}")
            self.put(at, node.hash, node.kept[1:])

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
            lacking: dict[str, Any] = {name: NONE}
            self.put(at, hash._replace(**lacking))

    def store_recovers(self, _: int) -> None:
        at_least = max([self.record.max, *(node.hash.top for node in self.nodes if node.hash)])
        self.store.recover(TAG, at_least=at_least, timeout=1)
        self.record = store.recover(self.record, at_least, self.version())

    # ------------------------------------------------------------------------------------------------ the servers

    def reigns(self, *, fresh: int | None = None) -> None:
        """Read who rules where. The reign of `fresh` is one that was never seen."""
        for at, tag in enumerate(self.tags):
            reign = tag.reign()
            if at == fresh:
                self.agree(f"a reign of {'AB'[at]} that was there before", reign in self.names, False)
            self.nodes[at] = self.nodes[at]._replace(reign=self.named(reign))

    def snapshot(self, at: int) -> None:
        self.dumps[at] = [*self.dumps[at], (self.servers[at].snapshot(), self.nodes[at])][-2:]

    def rollback(self, at: int) -> None:
        if not self.dumps[at]:
            return
        dump, held = self.chance.choice(self.dumps[at])
        self.alone(at)
        self.servers[at].restore(dump)
        self.started(at, held)

    def wipe(self, at: int) -> None:
        self.alone(at)
        self.servers[at].wipe().start()
        self.started(at, Node(master=True, reign=NONE))

    def started(self, at: int, held: Node) -> None:
        self.tags[at] = self.tag(self.servers[at])
        self.nodes[at] = self.nodes[at]._replace(master=True, hash=held.hash, kept=held.kept)
        self.follows[at] = False
        self.reigns(fresh=at)

    def alone(self, at: int) -> None:
        """Nobody follows that server any more."""
        if len(self.nodes) > 1 and self.follows[1 - at]:
            self.cut(1 - at)

    def synced(self, at: int) -> None:
        """Return when whoever follows that server has all that it has."""
        until(lambda: self.tags[at].client.wait(1, 1000), message=f"{'AB'[at]} is followed")

    def follow(self, at: int) -> None:
        """The server becomes a replica of the other one, if that is a master, and copies all that it has."""
        if len(self.nodes) < 2 or self.follows[at] or not self.nodes[1 - at].master:
            return
        self.servers[at].replicaof(self.servers[1 - at])
        self.follows[at] = True
        of = self.nodes[1 - at]
        self.nodes[at] = self.nodes[at]._replace(master=False, hash=of.hash, kept=of.kept)
        self.reigns()

    def cut(self, at: int) -> None:
        """A replica hears no more of its master: from now on it lags."""
        if not self.follows[at]:
            return
        self.synced(1 - at)
        self.tags[at].client.execute_command("REPLICAOF", "127.0.0.1", free_port())  # type: ignore[no-untyped-call]
        self.follows[at] = False
        self.reigns()

    def promote(self, at: int) -> None:
        """A replica becomes a master; the old one is still alive."""
        if self.nodes[at].master:
            return
        if self.follows[at]:
            self.synced(1 - at)
        self.servers[at].promote()
        self.follows[at] = False
        self.nodes[at] = self.nodes[at]._replace(master=True)
        self.reigns(fresh=at)
