"""Faults on the wire to the store that hit what an administrator asks of it, and what is asked now and then."""

import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager

import bson

import issuer
from issuer.cli.chaos.faults import WIRE, Fault
from issuer.cli.chaos.world import PLAIN, PREFIX, STRICT, TREND, now
from issuer.errors import IssuerError, StoreUnavailable, TagExists, UnknownTag
from issuer.persistence.contract import Store
from issuer.persistence.errors import Unavailable
from issuer.persistence.opening import open_store
from issuer.persistence.records import HIGHEST, Tag
from tests.chaos.groups import MongoWorld, only
from tests.chaos.more import desk, made_as
from tests.servers.proxy import FaultProxy

#: Seconds for a look at what is there.
LOOKING = 10.0
#: Seconds that a call may take beyond its deadline.
LATE = 0.5
#: So many ledger entries of a tag are looked at, the oldest; those that are older than the last of them are pruned.
FEW = 4
#: Seconds for that: the wire server of the tests looks at every entry that there is.
PRUNING = 30.0


def command(name: str, collection: str) -> bytes:
    """What a command for that collection has in it, on MongoDB's wire."""
    return bson.encode({name: collection})[4:-1]


#: What changes a tag that is there, whatever the change.
CHANGE = command("findAndModify", "issuer_tags")

#: What a store is asked without changing a tag: the request that is hit, and the call, which is told of a ledger entry
#: by its id. No answer is empty.
READS: Mapping[str, tuple[bytes, Callable[[Store, str, float], object]]] = {
    "store_id": (command("find", "issuer_meta"), lambda store, _, left: store.store_id(timeout=left)),
    "get": (command("find", "issuer_tags"), lambda store, _, left: store.get("strict", timeout=left)),
    "tags": (command("find", "issuer_tags"), lambda store, _, left: store.tags(timeout=left)),
    "ledger": (
        command("find", "issuer_segments"),
        lambda store, _, left: store.ledger("strict", newest=2, timeout=left),
    ),
    "segments": (
        command("find", "issuer_segments"),
        lambda store, _, left: store.segments("strict", count=10, timeout=left).entries,
    ),
    "entries": (
        command("find", "issuer_segments"),
        lambda store, entry, left: store.entries("strict", [entry], timeout=left),
    ),
    "examine": (bson.encode({"buildInfo": 1})[4:-1], lambda store, _, left: store.examine(timeout=left)),
}


class Office:
    """Where the store is administered, behind a proxy of its own: no drawing process's request is hit."""

    def __init__(self, world: MongoWorld, name: str, manner: str, ends: ExitStack) -> None:
        """`name`: the fault's. `manner`: of those in `WIRE`."""
        self.world = world
        self.name = f"{name} {manner}"
        self._hit = WIRE[manner]
        self._timeout = world.terms.timeout
        self._proxy = ends.enter_context(FaultProxy(("127.0.0.1", world.mongo.port)))
        self.url = f"mongodb://127.0.0.1:{self._proxy.port}/chaos?directConnection=true"
        self.ids = ends.enter_context(
            issuer.connect(
                redis=world.desk_url,
                store=self.url,
                prefix=PREFIX,
                timeout=self._timeout,
                scheduler=None,
                config=world.folder / "issuer.toml",
                journal=world.journal,
            )
        )
        #: For a look at what is there, past all faults.
        self.there = ends.enter_context(closing(open_store(world.store)))
        # Its first call asks for more than the later ones, which are those to be hit.
        self.ids.tags()

    @contextmanager
    def struck(
        self,
        call: str,
        request: bytes,
        ask: Callable[[float], object],
        *,
        did: tuple[type[IssuerError], ...] = (),
        doubtful: Callable[[], object] = lambda: None,
        segments: int = 4,
        timeout: float = 0,
    ) -> Iterator[None]:
        """Ask while such a request is hit, and once more if it isn't known what became of it; then the block is run.

        `did`: what is raised if it has been done before. `doubtful` checks what is there before it is asked again.
        `timeout`: in seconds, what it is told; 0: that of the world's calls.
        """
        hits = len(self.world.crew.workers) if segments else 0
        with self.world.fault(f"{self.name}: {call}", segments=segments, hits=hits):
            before = self._proxy.hits
            self._hit(self._proxy, request, 1)
            doubt = self._asked(call, ask, did, timeout or self._timeout)
            self._proxy.pass_through()
            assert self._proxy.hits > before, f"{call} was not hit"
            doubtful()
            if doubt:
                doubt = self._asked(call, ask, did, timeout or self._timeout)
                assert doubt is None, f"{call} failed with nothing in its way: {doubt!r}"
            yield

    @staticmethod
    def _asked(
        call: str, ask: Callable[[float], object], did: tuple[type[IssuerError], ...], timeout: float
    ) -> Exception | None:
        """Return the error after which it isn't known whether it was done; None: it was."""
        began = now()
        try:
            ask(timeout)
        except did:
            return None
        except (StoreUnavailable, Unavailable) as error:
            return error
        finally:
            took = (now() - began) / 1e9
            assert took <= timeout + LATE, f"{call} took {took:.2f} s of {timeout:g} s"
        return None

    def record(self, at: int) -> Tag:
        """Return the tag as it is in the store."""
        found = self.there.get(self.world.tags[at].name, timeout=LOOKING)
        assert found is not None
        return found


def looked_at(office: Office) -> None:
    (entry,) = office.there.ledger("strict", newest=1, timeout=LOOKING)
    for call, (request, ask) in READS.items():
        answers: list[object] = []
        # Its first call asks for the id.
        with closing(open_store(office.url)) as store:
            if call != "store_id":
                store.store_id(timeout=LOOKING)
            with office.struck(
                call,
                request,
                lambda left: answers.append(ask(store, entry.id, left)),  # noqa: B023
                segments=0,
            ):
                assert all(answers), f"{call} returned nothing"


def pruned(office: Office) -> None:
    tags = office.world.counted[: PLAIN + 1]

    def oldest(tag: str) -> list[int]:
        return [entry.time for entry in office.there.segments(tag, upward=True, count=FEW, timeout=PRUNING).entries]

    # A few of each tag and no more: the wire server of the tests takes 30 ms for each, and answers nobody meanwhile, so
    # that a reservation may time out. Each is a gap.
    before = min(oldest(tag)[-1] for tag in tags)
    with (
        closing(open_store(office.url)) as store,
        office.struck(
            "prune",
            command("delete", "issuer_segments"),
            lambda left: store.prune(before=before, timeout=left),
            timeout=PRUNING,
        ),
    ):
        for tag in tags:
            times = oldest(tag)
            assert times, f"the newest entry of {tag} is gone"
            assert times[0] >= before or len(times) == 1, f"{tag} has an entry that was to go"


def made(office: Office) -> None:
    world, name = office.world, f"made-{secrets.token_hex(4)}"
    step = world.terms.step
    with office.struck(
        "create",
        command("insert", "issuer_tags"),
        lambda left: office.ids.create(name, above=step, step=step, order="strict", timeout=left),
        did=(TagExists,),
        segments=0,
    ):
        at = world.watch(name, "strict", step)
        with desk(world, at) as draw:
            draw(3)
    assert (office.record(at).step, office.record(at).deleted) == (step, False)


def configured(office: Office, at: int) -> None:
    world, name = office.world, office.world.tags[at].name
    old, new = (world.terms.step, HIGHEST), (world.terms.step // 2, HIGHEST - 1)

    def settings() -> tuple[int, int]:
        return office.record(at).step, office.record(at).limit

    def whole() -> None:
        assert settings() in (old, new), f"configured by half: {settings()}"

    with office.struck(
        "configure",
        CHANGE,
        lambda left: office.ids.configure(name, step=new[0], limit=new[1], timeout=left),
        doubtful=whole,
    ):
        assert settings() == new
    world.more()
    world.ids.configure(name, step=old[0], limit=old[1])


def deleted_and_made_again(office: Office, at: int) -> None:
    world, name = office.world, office.world.tags[at].name
    before = office.record(at).max
    with office.struck("delete", CHANGE, lambda left: office.ids.delete(name, timeout=left), did=(UnknownTag,)):
        assert office.record(at).deleted
        with office.struck(
            "create again",
            CHANGE,
            lambda left: office.ids.create(name, **made_as(world, at), timeout=left),
            did=(TagExists,),
        ):
            assert office.record(at).max >= before


def halted_and_recovered(office: Office, at: int) -> None:
    name, before = office.world.tags[at].name, office.record(at).max
    with office.struck("halt", CHANGE, lambda left: office.ids.halt(name, timeout=left)):
        assert office.record(at).halted
        with office.struck("recover", CHANGE, lambda left: office.ids.recover(name, timeout=left)):
            assert (office.record(at).halted, office.record(at).max >= before) == (False, True)


def _administered(name: str, manner: str) -> Callable[[MongoWorld], None]:
    def strike(world: MongoWorld) -> None:
        with ExitStack() as ends:
            office = Office(world, name, manner, ends)
            looked_at(office)
            pruned(office)
            made(office)
            for change in (configured, deleted_and_made_again, halted_and_recovered):
                change(office, random.choice([STRICT, TREND, PLAIN]))
                # What was drawn before must not come back, and everybody goes on.
                world.more()

    return strike


ADMINISTERED = [
    Fault(
        "F9l",
        "an administrator's request to the store dropped",
        only(MongoWorld, _administered("F9l", "request dropped")),
    ),
    Fault(
        "F9m", "the store's reply to an administrator dropped", only(MongoWorld, _administered("F9m", "reply dropped"))
    ),
    Fault(
        "F9n",
        "the store's reply to an administrator 300 ms late",
        only(MongoWorld, _administered("F9n", "300 ms late")),
    ),
]
#: What is hit, each in turn.
CALLS = [*READS, "prune", "create", "configure", "delete", "create again", "halt", "recover"]
