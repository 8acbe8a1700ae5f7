"""The checks of the store and the settings."""

from __future__ import annotations

from collections.abc import Iterator

from issuer.core.inspect.doctor.clocks import compared
from issuer.core.inspect.doctor.facts import Facts
from issuer.core.inspect.doctor.finding import Check, Finding
from issuer.errors import CorruptState, StoreFull

#: SQLite's `synchronous`: FULL. 1 (NORMAL) loses commits in a power cut.
FULL = 2

#: Up to this many tags that the store has lost numbers of are reported one by one.
MOST_LOST = 10

#: Servers of a replica set that hold data: two leave a majority when one of three is away.
MEMBERS = 3


def reachable(facts: Facts) -> Iterator[Finding]:
    """Whether it answers."""
    if facts.store_error is None:
        yield Check("store-reachable", facts.store).ok("it answers", "It alone hands out ranges.")
        return
    why = "Drawing goes on while the numbers in hand last; then StoreUnavailable."
    remedy = "Start it, or correct the URL: `issuer config` shows which one holds and where it was set."
    if isinstance(facts.store_error, StoreFull):
        remedy = "Free space on its disk."
    if isinstance(facts.store_error, CorruptState):
        why, remedy = (
            "What no issuer writes is refused: that tag gets no segment.",
            "Restore that record, then recover.",
        )
    yield Check("store-reachable", facts.store).weak(str(facts.store_error), why, remedy, error=facts.store_error)


def lasting(facts: Facts) -> Iterator[Finding]:
    """Whether what it has handed out is remembered."""
    seen = facts.store_facts
    if seen is None:
        return
    name = f"{seen.kind} {seen.version}" if seen.version else seen.kind
    if seen.lasting is None:
        yield Check("store-lasting", facts.store).unknown(
            f"{name} doesn't tell how it is set up",
            "A store that forgets what it has handed out hands it out again.",
            "Look at its settings; its `examine` method can tell `doctor`.",
        )
    elif seen.lasting:
        yield Check("store-lasting", facts.store).ok(f"{name} keeps its records", "It outlives the process.")
    else:
        yield Check("store-lasting", facts.store).weak(
            "it is in the memory of this process",
            "Nothing of it survives: the next process begins again, and its numbers repeat. Other processes have "
            "ranges of their own, which overlap with these.",
            "Use mongodb:// or, on one machine, sqlite:///path.",
        )


def write_concern(facts: Facts) -> Iterator[Finding]:
    """Whether a reservation that was confirmed can't be rolled back."""
    seen = facts.store_facts
    if seen is None or seen.write_concern is None:
        return
    check, asked = "store-write-concern", dict(seen.asked_concern or {})
    why = "A primary that is deposed rolls back what no majority has: the same segment is handed out twice."
    if seen.write_concern.get("w") != "majority" or seen.write_concern.get("j") is not True:
        yield Check(check, facts.store).weak(
            f"writes wait for {_words(seen.write_concern)}", why, "Write with w='majority' and j=True."
        )
    elif asked.get("w", "majority") != "majority" or asked.get("j", True) is not True:
        yield Check(check, facts.store).advice(
            f"the URL or client asks for {_words(asked)}; majority and journal are used all the same",
            why + " Other programs that write with that URL, such as a restore or a repair by hand, aren't protected.",
            "Take it out of the URL.",
        )
    else:
        yield Check(check, facts.store).ok("writes wait for a majority's journal", "They are never rolled back.")


def replica_set(facts: Facts) -> Iterator[Finding]:
    """Whether another server takes over."""
    seen = facts.store_facts
    if seen is None or seen.replica_set is None:
        return
    check = "store-replica-set"
    if not seen.replica_set:
        yield Check(check, facts.store).advice(
            "it is one standalone server",
            "While it is away no segment can be reserved, and if its disk is lost a backup has to be restored: then a "
            "recovery must know the highest number issued.",
            "Make it a replica set of three.",
        )
    elif seen.members is not None and seen.members < MEMBERS:
        yield Check(check, facts.store).advice(
            f"servers with data in replica set {seen.replica_set}: {seen.members}",
            "With one of them away there may be no majority, and then no reservation.",
            "Make it three servers with data, no arbiter in place of one.",
        )
    else:
        name = "a sharded cluster" if seen.replica_set == "sharded" else f"replica set {seen.replica_set}"
        yield Check(check, facts.store).ok(f"it is {name}", "Another server takes over.")


def retry_writes(facts: Facts) -> Iterator[Finding]:
    """Whether the driver sends a write again after a failover."""
    seen = facts.store_facts
    if seen is None or seen.retry_writes is None:
        return
    if seen.retry_writes:
        yield Check("store-retry-writes", facts.store).ok("retryWrites is on", "A failover costs no gap.")
        return
    yield Check("store-retry-writes", facts.store).advice(
        "retryWrites is off",
        "A reservation whose answer is lost in a failover is reserved again: a gap of a segment each time.",
        "Take retryWrites=false out of the URL, unless the server needs it (Amazon DocumentDB does).",
    )


#: By what a host's name tells: the service, why its numbers may come again, and where to look.
SERVICES = {
    "cosmos-ru": (
        "Azure Cosmos DB for MongoDB",
        (
            "With writes in several regions the last writer wins, so two regions reserve the same range. Below strong "
            "consistency a region that fails takes confirmed reservations with it, and they are made again."
        ),
        (
            "In the account: one write region, and strong consistency. After a failover to another region "
            "{do:recover at_least=N} of every tag, N being the highest number that your tables hold, or recover all "
            "with {do:from_journal=[FILE]}."
        ),
    ),
    "cosmos-vcore": (
        "Azure Cosmos DB for MongoDB vCore (DocumentDB)",
        "A replica in another region follows late: once it is promoted, the last reservations are made again.",
        (
            "Never write to both. After a promotion {do:recover at_least=N} of every tag, N being the highest number "
            "that your tables hold, or recover all with {do:from_journal=[FILE]}."
        ),
    ),
}


def regions(facts: Facts) -> Iterator[Finding]:
    """Whether another region may reserve the same range."""
    seen = facts.store_facts
    if seen is not None and seen.service in SERVICES:
        name, why, remedy = SERVICES[seen.service]
        what = f"{name} doesn't tell in which regions it takes writes"
        yield Check("store-regions", facts.store).unknown(what, why, remedy)


def durability(facts: Facts) -> Iterator[Finding]:
    """Whether SQLite's commits outlive a power cut."""
    seen = facts.store_facts
    if seen is None or seen.journal is None or seen.synchronous is None:
        return
    what = f"journal mode {seen.journal}, synchronous {seen.synchronous}"
    if seen.journal == "wal" and seen.synchronous >= FULL:
        yield Check("store-durability", facts.store).ok(what, "What was committed outlives a power cut.")
        return
    yield Check("store-durability", facts.store).weak(
        what,
        "A power cut takes back what was committed last: the same segments are handed out again.",
        f"Use WAL and synchronous=FULL ({FULL}).",
    )


def lock(facts: Facts) -> Iterator[Finding]:
    """Whether an older program, which doesn't take the lock of an SQLite store, may use the file too."""
    seen = facts.store_facts
    if seen is None or seen.open_elsewhere is None:
        return
    check = Check("store-lock", facts.store)
    if not seen.open_elsewhere:
        yield check.ok("all programs that have it open take its lock", "Only one at a time changes it.")
        return
    yield check.advice(
        "a program that doesn't take its lock has it open, or one was killed while it wrote",
        "Such are older versions of issuer, and other programs that use SQLite. When an older version copies or reads "
        "the store's files, it loses SQLite's own locks: two programs then get the same numbers.",
        "Upgrade all programs that draw from it. If none is older, this goes away with the next reservation.",
    )


def schema(facts: Facts) -> Iterator[Finding]:
    """Whether an SQLite file is of this version's schema."""
    seen = facts.store_facts
    if seen is None or not seen.schema or seen.newest_schema is None:
        return
    check = Check("store-schema", facts.store)
    if seen.schema >= seen.newest_schema:
        yield check.ok(f"its schema is {seen.schema}", "The next write leaves it as it is.")
        return
    yield check.advice(
        f"its schema is {seen.schema}, that of this version is {seen.newest_schema}",
        "The first reservation of this version raises it, and programs of older versions refuse the file then.",
        "Upgrade all programs that use it; then raise it with `issuer upgrade`, or leave that to the first of them.",
    )


def clock(facts: Facts) -> Iterator[Finding]:
    """Whether its clock and this machine's agree; SQLite and memory have none of their own."""
    if facts.store_facts is not None and facts.store_facts.kind not in {"sqlite", "memory"}:
        yield compared("store-clock", facts.store, facts.store_clock)


def timeouts(facts: Facts) -> Iterator[Finding]:
    """Whether callers outwait a loader that hangs."""
    what = f"timeout is {facts.timeout:g} s; a loader that hangs is replaced after {facts.window:g} s"
    if facts.timeout > facts.window:
        why = "It is replaced while the callers still wait."
        yield Check("settings-timeouts", "settings").ok(what, why)
        return
    yield Check("settings-timeouts", "settings").advice(
        what,
        "Callers who wait for its segment have given up before, with an error.",
        f"Set timeout above {facts.window:g}, or store_timeout lower; the same on every process.",
    )


def _words(concern: object) -> str:
    fields = concern.items() if isinstance(concern, dict) else ()
    return ", ".join(f"{name}={value}" for name, value in fields) or "no other server"


def journal(facts: Facts) -> Iterator[Finding]:
    """Whether the store has lost what its journal knows."""
    lost = [each for each in facts.records if facts.witnessed.get(each.tag, 0) > each.max]
    for each in lost[:MOST_LOST]:
        yield Check("store-journal", facts.store).weak(
            f"tag {each.tag!r} stands at max {each.max}, and the journal knows that all up to "
            f"{facts.witnessed[each.tag]} are taken",
            "The store went back in time, as after a restored backup: it would hand those numbers out again.",
            "Look again: a hand back that is under way looks like this. Then {lost:recover}.",
            lost=each.tag,
        )
    if facts.witnessed and not lost:
        seen = f"it holds all that the journal knows of its {len(facts.records)} tags"
        yield Check("store-journal", facts.store).ok(seen, "A store that went back in time would show here.")


CHECKS = (
    reachable,
    lasting,
    journal,
    write_concern,
    replica_set,
    retry_writes,
    regions,
    durability,
    lock,
    schema,
    clock,
    timeouts,
)
