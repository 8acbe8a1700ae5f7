"""A master, its replicas and the Sentinels that watch over them, all of them real, ours alone and killable.

A failover by order takes 1 s; else about 2 s, 6 s when a vote was split. Every process is bound to loopback.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from tests.servers.pool import Group, configuration, empty, query
from tests.servers.ports import LOOPBACK
from tests.servers.redis import RedisServer
from tests.waiting import until

Address = tuple[str, int]

_AWAY = (redis.ConnectionError, redis.TimeoutError)
_START_TIMEOUT = 60.0
# Milliseconds. A vote that was split, or a promotion that took too long, is tried again after two failover timeouts.
_DOWN_AFTER, _FAILOVER_TIMEOUT, _FOR_EVER = 700, 2000, 3_600_000
# What a Sentinel does every second, two or ten, it does so many milliseconds apart here. Five ping-periods must last
# longer than a second: with the master down, replicas are asked every second, and one that said nothing for so long
# isn't promoted. One that stood still for two seconds, as a busy machine may, trusts nothing that it sees for the
# tilt-period, half a minute by itself: so long nobody would be promoted.
_HASTE = {"info-period": 500, "publish-period": 200, "ping-period": 300, "tilt-period": 1000}
# News of a failover are spread at once, whatever the publish-period. For four of them a Sentinel that isn't in charge
# bears a replica that calls itself a master; then it makes it a replica again. If that is less than a freeze and a tilt
# last, the promotion is undone before the one in charge has seen it, and nobody is a master any more.
_PATIENCE = {"publish-period": 2000}
# Redis 6.2 can't be told. A master that is new to a Sentinel counts as down if it isn't asked within the down-after:
# with less than a second the Sentinels depose one healthy master after the other.
_UNHURRIED_DOWN_AFTER = 1500
# Nor of its tilt-period: seconds for that half a minute, and for a failover.
_PROMOTED = 60.0


class Sentinel(RedisServer):
    """One Sentinel process. It rewrites its configuration itself, and finds it again when it is started again."""

    def __init__(self, binary: Path | str, configuration: Sequence[str], *, password: str = "") -> None:
        super().__init__(binary, password=password)
        self._configuration = configuration

    def _command(self) -> list[str]:
        path = self.directory / "sentinel.conf"
        # Until it has written its own id, it knows nothing that is worth keeping, and its port may still change.
        if not path.exists() or "myid" not in path.read_text():
            lines = [f"port {self.port}", f"bind {LOOPBACK}", f"dir {self.directory}", *self._configuration]
            if self.password:
                lines += [f"requirepass {self.password}", f"sentinel sentinel-pass {self.password}"]
            path.write_text("\n".join([*lines, ""]))
        return [str(self.binary), str(path), "--sentinel"]

    def hurry(self, name: str) -> None:
        """Make it ask its neighbours more often than once a second; if it can't, make it patient with this master."""
        with self.client() as client:
            if self._set(_HASTE) or client.sentinel_master(name)["down-after-milliseconds"] > _UNHURRIED_DOWN_AFTER:
                return
            client.execute_command("SENTINEL", "SET", name, "down-after-milliseconds", _UNHURRIED_DOWN_AFTER)

    def calm(self) -> None:
        """Let it bear a failover that others are in charge of, as it does by itself."""
        self._set(_PATIENCE)

    def _set(self, periods: Mapping[str, int]) -> bool:
        """Return whether it can be told."""
        with self.client() as client, contextlib.suppress(redis.ResponseError):
            client.execute_command("SENTINEL", "DEBUG", *(part for pair in periods.items() for part in pair))
            return True
        return False


class SentinelServers(Group):
    """`args` go to the command line of the data nodes. `ordered`: no replica becomes a master unless it is told to.

    `password` is that of the data nodes, `sentinel_password` that of the Sentinels; the url carries both.
    """

    def __init__(
        self,
        binary: Path | str,
        *args: str,
        name: str = "mymaster",
        password: str = "",
        sentinel_password: str = "",
        ordered: bool = False,
    ) -> None:
        self.name = name
        self.binary = Path(binary)
        self.nodes = [RedisServer(binary, *args, password=password) for _ in range(3)]
        self.sentinels: list[Sentinel] = []
        self._password = password
        self._sentinel_password = sentinel_password
        self._ordered = ordered
        self._fresh: list[Any] = []
        self._all = self.nodes

    @property
    def url(self) -> str:
        return self.url_of(self.name)

    def url_of(self, name: str, database: int = 0, **parameters: str) -> str:
        """Return the URL with another master's name, database or parameters."""
        login = f":{self._password}@" if self._password else ""
        if self._sentinel_password:
            parameters["sentinel_password"] = self._sentinel_password
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{login}{hosts}/{name}/{database}{query(parameters)}"

    def client(self, **options: Any) -> redis.Redis:
        return self.node(self.master()).client(**options)

    def node(self, address: Address) -> RedisServer:
        return next(node for node in self.nodes if node.address == address)

    def master(self) -> Address:
        """Return the master's address as most of the Sentinels that answer know it."""
        told = Counter(self._told())
        assert told, "no sentinel answers"
        return told.most_common(1)[0][0]

    def replicas(self) -> list[RedisServer]:
        """Return the nodes that aren't the master, dead or alive."""
        master = self.master()
        return [node for node in self.nodes if node.address != master]

    def kill_master(self) -> Address:
        """SIGKILL the master, and return its address."""
        address = self.master()
        self.node(address).kill()
        return address

    def pause_master(self) -> Address:
        """SIGSTOP the master, and return its address, for `resume`."""
        address = self.master()
        self.node(address).pause()
        return address

    def resume(self, address: Address) -> None:
        """SIGCONT: it is a master until a Sentinel tells it otherwise."""
        self.node(address).resume()

    def failover(self) -> Address:
        """Order a failover, and return the address of the master that goes, or is gone already."""
        old = self.master()
        sentinel = next(each for each in self.sentinels if each.running and not each.paused)

        def ordered() -> bool:
            with sentinel.client() as client:
                # Refused while another failover is under way, and while no replica is known to be good.
                return bool(client.execute_command("SENTINEL", "FAILOVER", self.name))

        until(ordered, _START_TIMEOUT, "a sentinel takes the order", ignoring=(redis.ResponseError,))
        return old

    def wait_for_master_other_than(self, old: Address, timeout: float = _PROMOTED) -> Address:
        """Return the address of the new master, as soon as all Sentinels that answer name it and it is one."""

        def new() -> Address | None:
            told = set(self._told())
            if len(told) != 1 or old in told:
                return None
            address = told.pop()
            return address if self.node(address).replication()["role"] == "master" else None

        address = until(new, timeout, f"{self!r} has another master than {old}", ignoring=_AWAY)
        assert address
        return address

    def wait_for_replica(self, address: Address, timeout: float = 60.0) -> None:
        """Return when that node follows the present master."""

        def follows() -> bool:
            seen = self.node(address).replication()
            return (seen["role"], seen.get("master_link_status")) == ("slave", "up")

        until(follows, timeout, f"{address} has become a replica", ignoring=_AWAY)

    def clean(self) -> None:
        """Empty it. One in which something was killed or changed is not mended: to start another one is quicker."""
        assert not any(server.paused for server in self._all), "somebody stands still"
        assert self._fresh == self._state(), "it has been changed"
        until(self._settled, message=f"{self!r} is sound", ignoring=_AWAY)
        master, *replicas = self.nodes
        empty(master, len(replicas))
        for replica in replicas:
            empty(replica)

    def _start(self) -> None:
        first, *others = self.nodes
        for node in self.nodes:
            node.start()
        for node in others:
            node.replicaof(first)
        watched = [
            f"sentinel monitor {self.name} {LOOPBACK} {first.port} 2",
            f"sentinel down-after-milliseconds {self.name} {_FOR_EVER if self._ordered else _DOWN_AFTER}",
            # What is ordered must come to its end, even if they stand still: nobody would try it again.
            f"sentinel failover-timeout {self.name} {_FAILOVER_TIMEOUT * (10 if self._ordered else 1)}",
            f"sentinel parallel-syncs {self.name} 2",
        ]
        if self._password:
            watched.append(f"sentinel auth-pass {self.name} {self._password}")
        self.sentinels = [Sentinel(self.binary, watched, password=self._sentinel_password) for _ in range(3)]
        # In this order they are ended: the Sentinels would make another master meanwhile.
        self._all = [*self.sentinels, *self.nodes]
        for sentinel in self.sentinels:
            sentinel.start()
            sentinel.hurry(self.name)
        until(self._settled, _START_TIMEOUT, f"{self!r} knows all its members", ignoring=_AWAY)
        for sentinel in self.sentinels:
            sentinel.calm()
        self._fresh = self._state()

    def _state(self) -> list[Any]:
        return [
            [server.pid for server in self._all],
            self.master(),
            *(configuration(node) for node in self.nodes if node.running),
        ]

    def _settled(self) -> bool:
        """Whether every Sentinel sees the master, the two replicas in sync and the two other Sentinels, all alive."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                master = client.sentinel_master(self.name)
                replicas = client.sentinel_slaves(self.name)
                others = client.sentinel_sentinels(self.name)
            if master["flags"] != "master" or (master["num-slaves"], master["num-other-sentinels"]) != (2, 2):
                return False
            if any(each["flags"] != "slave" or each["master-link-status"] != "ok" for each in replicas):
                return False
            if any(each["flags"] != "sentinel" for each in others):
                return False
        return True

    def _told(self) -> list[Address]:
        """What each Sentinel that answers says where the master is."""
        return [told for sentinel in self.sentinels if (told := self._told_by(sentinel))]

    def _told_by(self, sentinel: Sentinel) -> Address | None:
        if sentinel.paused or not sentinel.running:
            return None
        with contextlib.suppress(*_AWAY), sentinel.client(decode_responses=True) as client:
            if told := client.sentinel_get_master_addr_by_name(self.name):
                return str(told[0]), int(told[1])
        return None
