"""A reservation in MongoDB, beside the same two writes without the store, and checks of many tags."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from time import perf_counter
from typing import Any

from bson.int64 import Int64
from pymongo import ReturnDocument, WriteConcern

from issuer import connect
from issuer_persistence.ledger import LedgerEntry, Purpose
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.mongodb.call import INDEX, entry_document
from issuer_persistence.records import TagSettings
from tests.bench.figures import Bound, Figure, missing
from tests.bench.rounds import Effort, alternate, each
from tests.bench.servers import TAG, redis_server
from tests.servers.mongo import Client, MongoServers, find_mongod

STEP = 1000
TIMEOUT = 30.0
#: A write waits for the journal, which takes 1 ms for some time and 5 ms for some other: so the turns are short.
SLOWER, SLICES = 200, 50
#: Tags in a replica set of three, with ledger entries for each.
TAGS, ENTRIES = 10_000, 2


def mongo(effort: Effort) -> Iterator[Figure]:
    """Reservations in MongoDB beside two bare writes, and checks of many tags in a replica set of three."""
    what = "MongoDB, reservation / bare writes"
    program = find_mongod()
    if program is None:
        yield missing(what, "no mongod on this machine")
        return
    with ExitStack() as ends:
        server = ends.enter_context(MongoServers(program))
        store = ends.enter_context(closing(MongoStore.open(f"{server.url}/bench?directConnection=true")))
        store.create(TAG, TagSettings(step=STEP), timeout=TIMEOUT)
        client = ends.enter_context(Client(server.url, directConnection=True))
        contenders = {
            "MongoDB, reservation": each(
                partial(store.reserve, TAG, None, purpose=Purpose("bench"), timeout=TIMEOUT), effort.calls // SLOWER
            ),
            "MongoDB, bare writes": each(_bare(client), effort.calls // SLOWER),
        }
        rounds = alternate(contenders, effort.rounds, "us", SLICES)
    yield from rounds.figures()
    ours, bare = contenders
    yield rounds.ratio(ours, bare, Bound(1.15), what)
    with MongoServers(program, 3) as servers, redis_server() as redis:
        url = f"{servers.url}/bench?replicaSet=r"
        _fill(url)
        with connect(store=url, redis=redis.url, scheduler=None) as ids:
            for name, call in (("verify", ids.verify), ("recover, dry run", partial(ids.recover, dry_run=True))):
                began = perf_counter()
                call()
                yield Figure(f"{name} of {TAGS} tags", (perf_counter() - began,), "s", Bound(5))


def _bare(client: Client) -> Callable[[], object]:
    """Return the same two writes of the same documents, with the same write concern and index."""
    database = client.get_database("bare", write_concern=WriteConcern("majority", j=True))
    tags, segments = database["tags"], database["segments"]
    tags.insert_one(client["bench"]["issuer_tags"].find_one({"_id": TAG}) or {})
    segments.create_index(INDEX)
    move: Any = {"$inc": {"max": Int64(STEP)}}

    def write() -> None:
        after: Any = tags.find_one_and_update({"_id": TAG}, move, return_document=ReturnDocument.AFTER)
        high = after["max"]
        segments.insert_one({"tag": TAG, "low": high - STEP, "high": high, "reason": "bench", "host": "a", "pid": 1})

    return write


def _fill(url: str) -> None:
    """Create the tags, with ledger entries."""
    names = [f"t{number:05}" for number in range(TAGS)]
    with closing(MongoStore.open(url)) as store:
        for first in range(0, TAGS, 1000):
            part = dict.fromkeys(names[first : first + 1000], TagSettings(step=STEP, above=STEP * ENTRIES))
            store.create_many(part, timeout=TIMEOUT)
    spans = [(STEP * number, STEP * (number + 1)) for number in range(ENTRIES)]
    entries = [LedgerEntry(tag=tag, low=low, high=high, reason="load") for tag in names for low, high in spans]
    with Client(url) as client:
        client["bench"]["issuer_segments"].insert_many(map(entry_document, entries))
