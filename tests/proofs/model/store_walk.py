"""The store's half of a walk: the same steps on a tag's record in a real store and on the model's."""

import random
from typing import Any

from issuer_persistence.errors import Halted, LimitHit, LimitTooLow, MaxBehind, VersionMoved
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.memory import MemoryStore, Snapshot
from issuer_persistence.records import TagChanges, TagSettings
from tests.proofs.model import store
from tests.proofs.model.guards import INTACT
from tests.proofs.model.scripts import Scheme
from tests.proofs.model.state import STORE
from tests.proofs.model.store import Store

TAG = "orders"
STEP = 10
LIMIT = 2**62
REMEMBERED = 6


class DisagreementError(AssertionError):
    """The model and the real thing went different ways."""


class StoreWalk:
    """A store, and the model of its record."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.guards = INTACT
        self.log: list[str] = []
        self.names: dict[str, int] = {}
        self.ids: dict[Scheme, str] = {(): ""}
        self.store = MemoryStore()
        self.store_id = self.store.store_id(timeout=1)
        assert self.named(self.store_id) == STORE
        # What processes remember, the newest last; what is too old to be of use, too.
        self.opened: list[tuple[int, str, int]] = []
        self.reserved: list[tuple[Reservation, int]] = []
        made = self.store.create(TAG, TagSettings(step=STEP, limit=LIMIT, order="trend"), timeout=1)
        self.record = Store(0, self.named(made.version), limit=LIMIT)
        self.records: list[Store] = [self.record]
        self.backups: list[tuple[Snapshot, Store]] = []
        #: Every status seen, so that a test can ask for all of them.
        self.seen: set[str] = set()

    def named(self, name: str) -> int:
        """Return the model's number for a reign, a born or a version."""
        return self.names.setdefault(name, len(self.names) + 1)

    def name(self, number: int) -> str:
        return list(self.names)[number - 1]

    def scheme_of(self, id: str) -> Scheme:
        return next(scheme for scheme, name in self.ids.items() if name == id)

    def pick(self, remembered: list[Any]) -> Any:
        """Mostly the newest."""
        return remembered[-1] if self.chance.random() < 0.6 else self.chance.choice(remembered)

    def agree(self, what: str, real: object, model: object) -> None:
        if real != model:
            last = "\n".join(self.log[-12:])
            raise DisagreementError(
                f"seed {self.seed}, step {len(self.log)}: {what}\n  real:  {real}\n  model: {model}\n"
                f"The last steps:\n{last}"
            )

    def compare_record(self) -> None:
        now = self.store.get(TAG, timeout=1)
        assert now is not None
        version, scheme = self.named(now.version), self.scheme_of(now.scheme_id)
        record = Store(now.max, version, now.halted, now.deleted, scheme, now.limit)
        self.agree("the store's record", record, self.record)

    def version(self) -> int:
        """Return the version that the store has written just now."""
        real = self.store.get(TAG, timeout=1)
        assert real is not None
        return self.named(real.version)

    def reserve(self, _: int, n: int | None = None) -> None:
        """Reserve a step, or exactly n numbers."""
        at_least = self.pick(self.opened)[0] if self.opened else 0
        held: Reservation | None = None
        try:
            held = self.store.reserve(
                TAG, n, at_least=at_least, exact=n is not None, purpose=Purpose("load"), timeout=1
            )
            outcome = "ok"
        except MaxBehind:
            outcome = "behind"
        except Halted:
            outcome = "halted"
        except LimitHit:
            outcome = "full"
        self.seen.add(f"reserve {outcome}")
        expected, after = store.reserve(
            self.record, self.guards, n or STEP, at_least, self.version(), exact=n is not None
        )
        self.agree("reserve", outcome, expected)
        self.record = after
        if held is not None:
            self.reserved = [*self.reserved, (held, after.version)][-REMEMBERED:]

    def reserve_range(self, at: int) -> None:
        self.reserve(at, self.chance.randint(1, 2 * STEP))

    def read(self, _: int) -> None:
        """Remember the record, as whoever is about to change it does."""
        self.records = [*self.records, self.record][-REMEMBERED:]

    def change(self, _: int) -> None:
        seen = self.pick(self.records)
        changed = (*seen.scheme, seen.max)
        id = self.ids.setdefault(changed, f"{len(changed)}-{len(self.ids)}")
        done = True
        try:
            self.store.configure(TAG, TagChanges(scheme={"id": id}, seen=self.name(seen.version)), timeout=1)
        except VersionMoved:
            done = False
        self.seen.add(f"change {done}")
        expected, self.record = store.change_scheme(self.record, self.guards, seen, self.version())
        self.agree("change", done, expected)

    def raise_to(self, _: int) -> None:
        """A period begins."""
        at = self.record.max + self.chance.randint(-5, 50)
        if 0 <= at <= self.record.limit and self.record.max <= self.record.limit:
            self.store.configure(TAG, TagChanges(raise_to=at), timeout=1)
            self.record = store.raise_to(self.record, at, self.version())

    def set_limit(self, _: int) -> None:
        limit = self.chance.choice((LIMIT, self.record.max + self.chance.randint(-STEP, 2 * STEP)))
        done = True
        try:
            self.store.configure(TAG, TagChanges(limit=max(1, limit)), timeout=1)
        except LimitTooLow:
            done = False
        self.seen.add(f"limit {done}")
        expected, self.record = store.set_limit(self.record, self.guards, max(1, limit), self.version())
        self.agree("limit", done, expected)

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

    def backup(self, _: int) -> None:
        self.backups = [*self.backups, (self.store.snapshot(), self.record)][-2:]

    def restore(self, _: int) -> None:
        if self.backups:
            snapshot, self.record = self.chance.choice(self.backups)
            self.store.restore(snapshot)
