"""What a number, a tag and a segment cost each server: curves for docs/operate/sizing.md.

Costs are processor time that Redis itself counts, and bytes, since a machine of few cores limits rates. Redis is set up
as the pages advise: with an append-only file and a replica.
"""

import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Self
from unittest.mock import patch

import bson
import pymongo
import redis
from pymongo import monitoring

import issuer
from issuer.gateway import tag_scripts
from issuer.gateway.commands import RedisCall, script
from issuer.gateway.keys import redis_key
from issuer_persistence.contract import Store
from issuer_persistence.ledger import Purpose
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.bench.figures import Figure, missing
from tests.bench.model import Curves, fitted, picture
from tests.bench.processes import crew_of
from tests.bench.rounds import FULL, Effort
from tests.bench.servers import PREFIX, TAG, WINDOW, Wire, drawing
from tests.bench.tags import REST, draw_first, traced
from tests.servers.binaries import primary_server
from tests.servers.cluster import ClusterServers, slot_of
from tests.servers.mongo import MongoServers, find_mongod
from tests.servers.redis import RedisServer

#: Counts of tags, processes, masters of a Cluster, and numbers per draw.
TAGS, PROCESSES, MASTERS, BATCHES = (100, 1000, 10_000, 100_000), (1, 2, 3, 4, 6, 8), (1, 2, 3), (1, 10, 100, 1000)
#: Tags of a Cluster that are all drawn from.
MANY = 3000
#: Numbers of a segment where none is to run out, and of one that is measured.
LARGE, STEP = 1_000_000, 1000
#: Connections to a server that always has a command to do, and reservations that are measured.
CONNECTIONS, RESERVATIONS = 16, 400
#: A folder without a disk, if there is one: where what a process computes is measured.
RAM = "/dev/shm" if Path("/dev/shm").is_dir() else None
#: As long as the random words of a process.
BORN, STORE = "0123456789abcdef01234567", "0123456789abcdef01234567"


def sizing(effort: Effort) -> Iterator[Figure]:
    """A number, a tag and a segment in Redis, process and store: curves for docs/operate/sizing.md."""
    curves: Curves = {}
    for part in PARTS:
        yield from part(effort, curves)
    keep(effort.picture.with_name("sizing.json"), curves)
    for name, value in fitted(curves).items():
        yield Figure(f"model: {name}", (value,), "")
    effort.picture.with_name("sizing.svg").write_text(picture(curves), encoding="utf-8")


def keep(path: Path, curves: Curves) -> None:
    """Write the points. The file beside this module is a copy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rounded = {name: [[x, float(f"{y:.4g}")] for x, y in points] for name, points in sorted(curves.items())}
    lines = (f"  {json.dumps(name)}: {json.dumps(points)}" for name, points in rounded.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _noted(curves: Curves, name: str, x: float, values: Sequence[float], unit: str) -> Figure:
    curves.setdefault(name, []).append((x, median(values)))
    return Figure(f"{name}, {x:g}", tuple(values), unit)


def _counts(effort: Effort, less: int = 0) -> Sequence[int]:
    return TAGS[: len(TAGS) - less - (effort.rounds != FULL.rounds)]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server has counted: CPU time of its main thread (us), and bytes."""

    cpu: float
    received: int
    sent: int
    replicated: int

    @classmethod
    def of(cls, server: RedisServer) -> Self:
        with server.client() as client:
            found = client.info()
        main = "_main_thread" if "used_cpu_sys_main_thread" in found else ""  # since Redis 7.0
        cpu = float(found[f"used_cpu_user{main}"]) + float(found[f"used_cpu_sys{main}"])
        sent = found["total_net_output_bytes"] - found.get("total_net_repl_output_bytes", 0)
        return cls(cpu * 1e6, found["total_net_input_bytes"], sent, found["master_repl_offset"])

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, each.name) - getattr(other, each.name) for each in fields(self)))


#: A packed command, and the server that gets it.
Sent = tuple[RedisServer, bytes]


class Lines:
    """Connections to servers: to each of them so many that it always has a command to do."""

    def __init__(self, *servers: RedisServer) -> None:
        self._wires = {server: [Wire(server) for _ in range(CONNECTIONS)] for server in servers}
        for wire, *_ in self._wires.values():
            for name in ("open", "load", "next", "lease"):
                wire.command("SCRIPT", "LOAD", script(name).text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for wires in self._wires.values():
            for wire in wires:
                wire.__exit__()

    def fill(self, tags: Mapping[str, RedisServer], segments: int = 2) -> list[Sent]:
        """Give tags their segments, with the scripts that a process calls. Return the draw of a number of each."""
        keys = {redis_key(PREFIX, tag): server for tag, server in tags.items()}
        replies = self.replies([(server, _opening(key).packed) for key, server in keys.items()])
        opened = {key: _opening(key).decode(reply) for key, reply in zip(keys, replies, strict=True)}
        for low in range(0, segments * LARGE, LARGE):
            loads = [(keys[key], _loading(key, low, LARGE, found).packed) for key, found in opened.items()]
            if b"stale" in {reply[0] for reply in self.replies(loads)}:
                raise RuntimeError("a segment was not loaded")
        return [(server, tag_scripts.draw(key, 1, WINDOW / 1000).packed) for key, server in keys.items()]

    def replies(self, commands: Sequence[Sent]) -> Iterator[Any]:
        """Send all of them, never two at a time over one connection, and yield the replies, in order."""
        free = {server: list(wires) for server, wires in self._wires.items()}
        asked: list[Wire] = []
        for server, command in commands:
            if not free[server]:
                yield from (wire.reply() for wire in asked)
                free, asked = {server: list(wires) for server, wires in self._wires.items()}, []
            asked.append(free[server].pop())
            asked[-1].send(command)
        yield from (wire.reply() for wire in asked)

    def cost(self, commands: Sequence[Sent]) -> float:
        """Return the CPU time, in us, that the busiest server takes for them, divided by their count."""
        before = {server: Usage.of(server) for server in self._wires}
        for _ in self.replies(commands):
            pass
        return max((Usage.of(server) - early).cpu for server, early in before.items()) / len(commands)


def _opening(key: str) -> RedisCall[tag_scripts.Opened]:
    return tag_scripts.open(key, BORN, STORE, WINDOW / 1000, "claim")


def _loading(key: str, low: int, size: int, opened: tag_scripts.Opened) -> RedisCall[tag_scripts.Loaded]:
    return tag_scripts.load(key, low, low + size, low + size // 5, reign=opened.reign, born=opened.born)


@contextmanager
def _redis(*, appendonly: bool = True, replica: bool = True) -> Iterator[RedisServer]:
    binary = _binary()
    with ExitStack() as ends:
        server = ends.enter_context(RedisServer(binary, "--repl-diskless-sync-delay", "0", appendonly=appendonly))
        if replica:
            ends.enter_context(RedisServer(binary)).replicaof(server)
            _followed(server)
        yield server


def _binary() -> Path:
    if (binary := primary_server()) is None:
        raise RuntimeError("no redis-server, no valkey-server: install one")
    return binary


def _followed(server: RedisServer) -> None:
    """Return when the replica has all that was written: it must not catch up while draws are measured."""
    with server.client() as client:
        client.set("written", "last")
        client.wait(1, 10_000)
        client.delete("written")


# ------------------------------------------------------------------- Redis


def _setups(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """A draw without append-only file and replica (0), with one of them (1, 2), with both (3)."""
    kinds = [(False, False), (True, False), (False, True), (True, True)]
    spent: list[list[float]] = [[] for _ in kinds]
    with ExitStack() as ends:
        servers = [ends.enter_context(_redis(appendonly=aof, replica=replica)) for aof, replica in kinds]
        lines = [ends.enter_context(Lines(server)) for server in servers]
        draws = [line.fill({TAG: server}) for server, line in zip(servers, lines, strict=True)]
        for _ in range(effort.rounds):
            for line, draw, values in zip(lines, draws, spent, strict=True):
                values.append(line.cost(draw * effort.calls))
    for place, values in enumerate(spent):
        yield _noted(curves, "redis_us_by_setup", place, values, "us")


def _by_tags(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """Draws from tags at random, while Redis has 100 to 100 000 tags, and the memory of the tags."""
    chosen = random.Random(1)
    with _redis() as server, server.client() as client:
        draws: list[Sent] = []
        with Lines(server) as lines:  # scripts and buffers are there before the first tag
            lines.fill({TAG: server})
        time.sleep(REST)
        empty = _held(client)
        for count in _counts(effort):
            with Lines(server) as lines:
                draws += lines.fill({f"customer-{number}": server for number in range(len(draws), count)})
                _followed(server)
                used = [lines.cost(chosen.choices(draws, k=effort.calls)) for _ in range(effort.rounds)]
            # The buffers of the connections are not the tags'.
            time.sleep(REST)
            yield _noted(curves, "redis_us_by_tags", count, used, "us")
            yield _noted(curves, "redis_bytes_by_tags", count, [_held(client) - empty], "bytes")


def _held(client: redis.Redis) -> int:
    """Return the bytes of the data and of the table of keys, without buffers."""
    memory = client.memory_stats()
    return int(memory["dataset.bytes"] + memory.get("db.0", {}).get("overhead.hashtable.main", 0))


def _by_masters(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """A Cluster of 1 to 3 masters: the numbers a second at which the busiest master uses a core, one tag and 3000."""
    for count in MASTERS:
        with ClusterServers(_binary(), "--appendonly", "yes", masters=count) as cluster:
            views = {node: node.members() for node in cluster.masters()}
            owners = {node: next(each for each in view if "myself" in each.flags) for node, view in views.items()}
            slots = {f"customer-{number}": slot_of(redis_key(PREFIX, f"customer-{number}")) for number in range(MANY)}
            tags = {tag: next(node for node, me in owners.items() if me.owns(slot)) for tag, slot in slots.items()}
            with Lines(*owners) as lines:
                draws = lines.fill(tags)
                for kind, used in (("hot", draws[:1] * len(draws)), ("many", draws)):
                    times = max(1, effort.calls // len(used))
                    rates = [1e6 / lines.cost(used * times) for _ in range(effort.rounds)]
                    yield _noted(curves, f"bound_by_masters_{kind}", count, rates, "/s")


def _by_segment(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """A segment of 1000 numbers, drawn at once: Redis for draw, open and load; the process with SQLite."""
    with _redis() as server, Lines(server) as lines:
        tags = [f"customer-{number}" for number in range(CONNECTIONS)]
        keys = [redis_key(PREFIX, tag) for tag in tags]
        lines.fill(dict.fromkeys(tags, server), segments=1)
        draws = [(server, tag_scripts.draw(key, LARGE, WINDOW / 1000).packed) for key in keys]
        leases = [(server, tag_scripts.lease(key, 1, WINDOW / 1000).packed) for key in keys]
        held = [lines.cost(leases * (effort.calls // CONNECTIONS)) for _ in range(effort.rounds)]
        rounds = range(1, 1 + effort.calls // CONNECTIONS)
        before = Usage.of(server)
        for place in rounds:
            assert {len(reply) for reply in lines.replies(draws)} == {5}, "each draw elects its caller"
            replies = lines.replies([(server, _opening(key).packed) for key in keys])
            opened = [_opening(key).decode(reply) for key, reply in zip(keys, replies, strict=True)]
            loads = [_loading(key, place * LARGE, LARGE, each).packed for key, each in zip(keys, opened, strict=True)]
            assert b"full" not in {reply[0] for reply in lines.replies([(server, load) for load in loads])}
        spent = (Usage.of(server) - before).cpu / len(rounds) / CONNECTIONS
    yield _noted(curves, "redis_us_by_lease_call", 1, held, "us")
    yield _noted(curves, "redis_us_by_segment", STEP, [spent], "us")
    with (
        _redis() as server,
        TemporaryDirectory(dir=RAM) as folder,
        drawing(server, store=f"sqlite:///{folder}/ids.db", step=STEP) as ids,
    ):
        segments, began = effort.calls // 10, time.process_time()
        for _ in range(segments):
            ids.take(TAG, STEP)
    yield _noted(curves, "process_us_by_segment", STEP, [(time.process_time() - began) / segments * 1e6], "us")


# --------------------------------------------------------------- processes


def _caller(redis: str, store: str, orders: Connection) -> None:
    """Draw for so many seconds, again and again: answer with the numbers and the processor time (us)."""
    with issuer.connect(redis=redis, store=store, prefix=PREFIX) as ids:
        ids.next(TAG)
        orders.send("ready")
        while (seconds := orders.recv()) is not None:
            numbers, began, end = 0, time.process_time(), time.monotonic() + seconds
            while time.monotonic() < end:
                ids.next(TAG)
                numbers += 1
            orders.send((numbers, (time.process_time() - began) * 1e6))


def _by_processes(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """1 to 8 processes with a caller each, strict."""
    with ExitStack() as ends:
        store = f"sqlite:///{ends.enter_context(TemporaryDirectory(prefix='issuer-bench-'))}/ids.db"
        server = ends.enter_context(_redis())
        ends.enter_context(drawing(server, store=store))
        crew = ends.enter_context(crew_of(partial(_caller, server.url, store)))
        found: dict[int, list[tuple[float, float, float]]] = {count: [] for count in PROCESSES}
        for _ in range(max(1, effort.rounds // 2)):
            for count, values in found.items():
                before = Usage.of(server)
                for pipe in crew[:count]:
                    pipe.send(effort.seconds)
                replies = [pipe.recv() for pipe in crew[:count]]
                used, numbers = Usage.of(server) - before, sum(reply[0] for reply in replies)
                spent = sum(reply[1] for reply in replies)
                values.append((numbers / effort.seconds, used.cpu / numbers, spent / numbers))
    for name, place, unit in (("rate", 0, "/s"), ("redis_us", 1, "us"), ("process_us", 2, "us")):
        for count, rounds in found.items():
            each = [values[place] for values in rounds]
            # Other programs of the machine can only lower a rate.
            yield _noted(curves, f"{name}_by_processes", count, [max(each)] if unit == "/s" else each, unit)


def _by_batch(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """take(n) of a strict tag, and next() with a lease of n: what a number costs Redis, network and process."""
    with _redis() as server, Lines(server) as lines:
        lines.fill({TAG: server})
        for n in BATCHES:
            draw = tag_scripts.draw(redis_key(PREFIX, TAG), n, WINDOW / 1000).packed
            spent = [lines.cost([(server, draw)] * (LARGE // BATCHES[-1])) / n for _ in range(effort.rounds)]
            yield _noted(curves, "redis_us_by_batch", n, spent, "us")
    for n in BATCHES:
        with _redis() as server, drawing(server, step=LARGE * 100) as ids:
            yield from _each(effort, curves, ("take", n), server, partial(ids.take, TAG, n))
    for n in BATCHES[1:]:
        with _redis() as server, drawing(server, step=LARGE * 100, order="trend", lease=n) as ids:
            yield from _each(effort, curves, ("lease", n), server, partial(ids.next, TAG))


def _each(
    effort: Effort, curves: Curves, what: tuple[str, int], server: RedisServer, call: Callable[[], object]
) -> Iterator[Figure]:
    kind, n = what
    numbers = n if kind == "take" else 1
    calls = effort.calls * min(n, 50) // numbers
    found: list[tuple[float, ...]] = []
    for _ in range(effort.rounds):
        before, began = Usage.of(server), time.process_time()
        for _ in range(calls):
            call()
        spent, used = (time.process_time() - began) * 1e6, Usage.of(server) - before
        found.append(tuple(each / calls / numbers for each in (spent, used.received, used.sent, used.replicated)))
    for place, name in enumerate(("process_us", "received", "sent", "replicated")):
        yield _noted(curves, f"{name}_by_{kind}", n, [values[place] for values in found], "")


def _by_visit(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """A strict number of a tag that rests in memory (0), and that the process has forgotten (1), with what follows."""
    found: dict[str, list[list[float]]] = {"process": [[], []], "redis": [[], []]}
    with (
        _redis() as server,
        TemporaryDirectory(dir=RAM) as folder,
        issuer.connect(redis=server.url, store=f"sqlite:///{folder}/tags.db", prefix=PREFIX) as ids,
    ):
        names = [f"customer-{number}" for number in range(effort.calls // 10)]
        for name in names:
            draw_first(ids, name)
        time.sleep(REST)
        for _ in range(3):
            for place in (0, 1):
                before, began = Usage.of(server), time.process_time()
                for name in names:
                    ids.next(name)
                time.sleep(REST)
                spent, used = (time.process_time() - began) * 1e6, Usage.of(server) - before
                found["process"][place].append(spent / len(names))
                found["redis"][place].append(used.cpu / len(names))
                with patch("issuer.operations.registry.RESTING_MOST", 0 if place == 0 else len(names)):
                    while place == 0 and len(ids.engine.registry.combiners) > 1:
                        time.sleep(0.1)
        looks = b"".join(tag_scripts.read_hash(redis_key(PREFIX, name)).packed for name in names)
        with Wire(server) as wire:
            before = Usage.of(server)
            for _ in range(10):
                wire.send(looks)
                for _ in names:
                    wire.reply()
            look = (Usage.of(server) - before).cpu / (10 * len(names))
    for kind, places in found.items():
        for place, values in enumerate(places):
            yield _noted(curves, f"{kind}_us_by_visit", place, values, "us")
    yield _noted(curves, "redis_us_by_look", 1, [look], "us")


def _memory(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """The memory of a process for tags that it has used a moment ago."""
    with (
        _redis() as server,
        TemporaryDirectory(dir=RAM) as folder,
        issuer.connect(redis=server.url, store=f"sqlite:///{folder}/tags.db", prefix=PREFIX) as ids,
    ):
        draw_first(ids, TAG)
        tracemalloc.start()
        before, made = traced(), 0
        for count in _counts(effort, less=1):
            for number in range(made, count):
                draw_first(ids, f"customer-{number}")
            made = count
            time.sleep(REST)
            yield _noted(curves, "process_bytes_by_tags", count, [traced() - before], "bytes")
        tracemalloc.stop()


# ------------------------------------------------------------------ stores


def _sqlite(effort: Effort, curves: Curves) -> Iterator[Figure]:
    """The file of 100 to 100 000 tags, and of 400 reservations."""
    with TemporaryDirectory(prefix="issuer-bench-") as folder:
        path, made = Path(folder) / "ids.db", 0
        for count in _counts(effort):
            with issuer.connect(redis="none", store=f"sqlite:///{path}") as ids:
                while made < count:
                    page = min(500, count - made)
                    ids.create_many({f"customer-{number}": {} for number in range(made, made + page)}, timeout=60)
                    made += page
            yield _noted(curves, "sqlite_bytes_by_tags", count, [path.stat().st_size], "bytes")
        before = path.stat().st_size
        with closing(open_store(f"sqlite:///{path}")) as store:
            _reserve(store, RESERVATIONS)
            began = time.process_time()
            for number in range(RESERVATIONS):
                store.get(f"customer-{number}", timeout=10)
            read = (time.process_time() - began) / RESERVATIONS
        grown = path.stat().st_size - before
    yield _noted(curves, "sqlite_us_by_read", 1, [read * 1e6], "us")
    yield _noted(curves, "sqlite_bytes_by_reservation", 1, [grown / RESERVATIONS], "bytes")


def _reserve(store: Store, count: int) -> None:
    """Reserve so often, from 100 tags in turns."""
    purpose = Purpose("load", "issuer", f"{BORN}.1234567890.123456")
    for number in range(count):
        store.reserve(f"customer-{number % 100}", None, purpose=purpose, timeout=10)


class _Commands(monitoring.CommandListener):
    """Counts the commands of MongoDB clients, and the bytes of commands and replies."""

    def __init__(self) -> None:
        self.count = self.bytes = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.count += 1
        self.bytes += len(bson.encode(event.command))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self.bytes += len(bson.encode(event.reply))

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Do nothing: a failed reservation raises."""


def _mongo(_: Effort, curves: Curves) -> Iterator[Figure]:
    """The documents of tags and reservations in MongoDB, and the commands of a reservation."""
    program, commands = find_mongod(), _Commands()
    if program is None:
        yield missing("MongoDB", "no mongod")
        return
    monitoring.register(commands)
    with MongoServers(program) as server, closing(open_store(f"{server.url}/issuer")) as store:
        for number in range(100):
            store.create(f"customer-{number}", TagSettings(), timeout=10)
        _reserve(store, 100)
        count, size = commands.count, commands.bytes
        _reserve(store, 100)
        count, size = commands.count - count, commands.bytes - size
        with pymongo.MongoClient[dict[str, Any]](server.url) as client:
            documents = {
                name: [len(bson.encode(each)) for each in client["issuer"][f"issuer_{name}"].find()]
                for name in ("tags", "segments")
            }
    yield _noted(curves, "mongo_commands_by_reservation", 1, [count / 100], "")
    yield _noted(curves, "mongo_network_by_reservation", 1, [size / 100], "bytes")
    for name, sizes in documents.items():
        yield _noted(curves, f"mongo_bytes_by_{name}", 1, [median(sizes)], "bytes")


PARTS = (_setups, _by_tags, _by_masters, _by_segment, _by_processes, _by_batch, _by_visit, _memory, _sqlite, _mongo)
