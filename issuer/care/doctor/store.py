"""Checks of the store and of the settings."""

from __future__ import annotations

from collections.abc import Iterator

from issuer.care.doctor.findings import Check, Facts, Finding, compared
from issuer.errors import ConfigurationError, CorruptState, StoreFull
from issuer.times import lasting as lasting_

#: The value FULL of SQLite's setting `synchronous`. With the value 1 (NORMAL), a power cut loses commits.
FULL = 2

#: How many servers with data a replica set needs. If one of three is down, the other two are still a majority.
MEMBERS = 3


def reachable(facts: Facts) -> Iterator[Finding]:
    error = facts.store_error
    if error is None:
        yield Check("store-reachable", facts.store).ok("the store answers", "Segments can be reserved.")
        return
    why = f"Callers get numbers until the reserved segments are used up. Then their calls raise {type(error).__name__}."
    remedy = "Start the store, or correct its URL. `issuer config` shows the URL in use and where it was set."
    if isinstance(error, ConfigurationError):
        remedy = (
            "Correct what was rejected: the URL, the login in it, or the rights of its user. `issuer config` shows the "
            "URL in use and where it was set."
        )
    if isinstance(error, StoreFull):
        remedy = "Free space on the disk of the store."
    if isinstance(error, CorruptState):
        why, remedy = (
            "The issuer never writes such a record. It reserves no segment for this tag, to be safe.",
            "Restore the record, then run recover for the tag.",
        )
    yield Check("store-reachable", facts.store).weak(str(error), why, remedy, error=error)


def lasting(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts
    if seen is None:
        return
    name = f"{seen.kind} {seen.version}" if seen.version else seen.kind
    if seen.lasting is None:
        yield Check("store-lasting", facts.store).unknown(
            f"{name} doesn't report whether its records are durable",
            "A store that loses its records reserves the same numbers again.",
            "Check the settings of the store. A store of your own reports this to `doctor` in its `examine` method.",
        )
    elif seen.lasting:
        yield Check("store-lasting", facts.store).ok(
            f"{name} stores records durably", "The records outlive the process."
        )
    else:
        yield Check("store-lasting", facts.store).weak(
            "the store is in the memory of this process",
            "Its records end with the process. The next process, and every other process, issues the same numbers "
            "again.",
            "Use a database server, or sqlite:///path on a single machine.",
        )


def write_concern(facts: Facts) -> Iterator[Finding]:
    """Check the write concern: whether MongoDB can roll back a reservation that it has confirmed."""
    seen = facts.store_facts
    if seen is None or seen.write_concern is None:
        return
    check, asked = "store-write-concern", dict(seen.asked_concern or {})
    why = (
        "If a primary fails, it rolls back writes that the majority doesn't have. Then the same segment is reserved "
        "twice."
    )
    if seen.write_concern.get("w") != "majority" or seen.write_concern.get("j") is not True:
        yield Check(check, facts.store).weak(
            f"the write concern is {_words(seen.write_concern)}", why, "Use w='majority' and j=True."
        )
    elif asked.get("w", "majority") != "majority" or asked.get("j", True) is not True:
        yield Check(check, facts.store).advice(
            f"the URL or client asks for {_words(asked)}; the issuer writes with majority and journal anyway",
            why + " Other programs that use this URL, such as a restore, aren't protected.",
            "Remove the write concern from the URL.",
        )
    else:
        yield Check(check, facts.store).ok(
            "the write concern is majority, with journal", "Writes are never rolled back."
        )


def replica_set(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts
    if seen is None or seen.replica_set is None:
        return
    check = "store-replica-set"
    if not seen.replica_set:
        yield Check(check, facts.store).advice(
            "it is a single server without replicas",
            "While it is unavailable, no segment can be reserved. If its disk is lost, you must restore a backup, and "
            "then recover every tag with the highest number issued.",
            "Use a replica set of three servers.",
        )
    elif seen.members is not None and seen.members < MEMBERS:
        yield Check(check, facts.store).advice(
            f"servers with data in replica set {seen.replica_set}: {seen.members}",
            "If one of them is unavailable, there may be no majority, and then no segment can be reserved.",
            "Use three servers with data. An arbiter doesn't count.",
        )
    else:
        name = "a sharded cluster" if seen.replica_set == "sharded" else f"replica set {seen.replica_set}"
        yield Check(check, facts.store).ok(f"it is {name}", "If a server fails, another one takes over.")


def retry_writes(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts
    if seen is None or seen.retry_writes is None:
        return
    if seen.retry_writes:
        yield Check("store-retry-writes", facts.store).ok("retryWrites is on", "A failover causes no gap.")
        return
    yield Check("store-retry-writes", facts.store).advice(
        "retryWrites is off",
        "If the answer to a reservation is lost in a failover, the segment is a gap, and another one is reserved.",
        "Remove retryWrites=false from the URL, unless the server needs it (Amazon DocumentDB does).",
    )


#: Services with several regions, by `StoreFacts.service`. For each: its name, the reason why numbers can repeat, and
#: the recommended action.
SERVICES = {
    "cosmos-ru": (
        "Azure Cosmos DB for MongoDB",
        (
            "If several regions accept writes, the last writer wins, so two regions can reserve the same range. "
            "Without strong consistency, confirmed reservations are lost when a region fails, and are then made again."
        ),
        (
            "Set one write region and strong consistency in the account. After a failover to another region, run "
            "{do:recover at_least=N} for every tag, where N is the highest number in your tables, or recover all tags "
            "with {do:from_journal=[FILE]}."
        ),
    ),
    "cosmos-vcore": (
        "Azure Cosmos DB for MongoDB vCore (DocumentDB)",
        "A replica in another region lags. If this replica is promoted, the store makes the last reservations again.",
        (
            "Never write to both regions. After a promotion, run {do:recover at_least=N} for every tag, where N is the "
            "highest number in your tables, or recover all tags with {do:from_journal=[FILE]}."
        ),
    ),
}


def regions(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts
    if seen is not None and seen.service in SERVICES:
        name, why, remedy = SERVICES[seen.service]
        what = f"{name} doesn't report in which regions it accepts writes"
        yield Check("store-regions", facts.store).unknown(what, why, remedy)


def durability(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts
    if seen is None or seen.journal is None or seen.synchronous is None:
        return
    what = f"journal mode {seen.journal}, synchronous {seen.synchronous}"
    if seen.journal == "wal" and seen.synchronous >= FULL:
        yield Check("store-durability", facts.store).ok(what, "Commits survive a power cut.")
        return
    yield Check("store-durability", facts.store).weak(
        what,
        "The last commits are lost in a power cut. Then the same segments are reserved again.",
        f"Use journal mode WAL and synchronous FULL ({FULL}).",
    )


def settings(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts.settings if facts.store_facts is not None else ()
    check = Check("store-settings", facts.store)
    for each in seen:
        if not each.good:
            found = check.unknown if each.good is None else check.weak
            yield found(f"{each.name}: {each.value}", each.why, each.remedy)
    if good := ", ".join(f"{each.name}: {each.value}" for each in seen if each.good):
        yield check.ok(good, "Nothing is wrong with these settings.")


def shared(facts: Facts) -> Iterator[Finding]:
    seen = None if facts.store_facts is None else facts.store_facts.sharing
    if seen is None:
        return
    check = Check("store-shared", facts.store)
    if not seen.adopted:
        yield check.advice(
            f"{seen.program} may draw from its table {seen.table}, too",
            f"Numbers do not repeat. But `halt` and `limit` do not stop {seen.program}, its numbers are not in order "
            f"with these, its gaps are its own, and it repeats numbers if max_id is lowered. This issuer refuses a "
            "lowered max_id.",
            f"When {seen.program} has stopped for good, run `issuer adopt`.",
        )
    elif seen.moved:
        yield check.weak(
            f"another program still draws from {seen.table}, although it was adopted; tags: {', '.join(seen.moved)}",
            "This issuer refuses reservations of these tags. Calls fail when the reserved numbers are used up.",
            f"Stop {seen.program}. Then run {{do:recover}} for each of these tags.",
        )
    else:
        yield check.ok(f"nothing else has drawn from {seen.table} since it was adopted", "Only this issuer draws.")


def lock(facts: Facts) -> Iterator[Finding]:
    """Check whether another program has the SQLite file open, but does not use the store's lock file.

    Older versions are such programs. Then two programs may write at once, and get the same numbers.
    """
    seen = facts.store_facts
    if seen is None or seen.open_elsewhere is None:
        return
    check = Check("store-lock", facts.store)
    if not seen.open_elsewhere:
        yield check.ok("all programs that have it open use its lock", "Only one program at a time writes to it.")
        return
    yield check.advice(
        "a program that doesn't use its lock has it open, or a program was killed while it wrote",
        "Older versions of issuer and other programs that use SQLite don't use the lock. When such a program copies or "
        "reads the store's file, SQLite's own locks are lost. Then two programs can get the same numbers.",
        "Upgrade all programs that draw from this file. If none is older, the next reservation clears this finding.",
    )


def schema(facts: Facts) -> Iterator[Finding]:
    seen = facts.store_facts
    if seen is None or not seen.schema or seen.newest_schema is None:
        return
    check = Check("store-schema", facts.store)
    if seen.schema >= seen.newest_schema:
        yield check.ok(f"its schema is {seen.schema}", "The schema needs no upgrade.")
        return
    yield check.advice(
        f"its schema is {seen.schema}; this version uses schema {seen.newest_schema}",
        "The first reservation by this version upgrades the schema. Programs of older versions reject the file "
        "afterwards.",
        "Upgrade all programs that use the file. Then run `issuer upgrade`, or let the next reservation do it.",
    )


def clock(facts: Facts) -> Iterator[Finding]:
    """Check whether the store's clock agrees with this machine's clock. SQLite and memory use this machine's clock."""
    if facts.store_facts is not None and facts.store_facts.own_clock:
        yield compared("store-clock", facts.store, facts.store_clock)


def timeouts(facts: Facts) -> Iterator[Finding]:
    """Check that callers wait longer than `window`.

    A loader is the process that loads a segment. If it hangs, it is replaced after `window` seconds. Callers that still
    wait then get numbers. The others have received an error.
    """
    window = lasting_(facts.settings.window)
    what = f"timeout is {lasting_(facts.settings.timeout)}; a loader that hangs is replaced after {window}"
    if facts.settings.timeout > facts.settings.window:
        why = "The loader is replaced while the callers still wait."
        yield Check("settings-timeouts", "settings").ok(what, why)
        return
    yield Check("settings-timeouts", "settings").advice(
        what,
        "Callers that wait for the segment of this loader get an error before the loader is replaced.",
        f"Set timeout above {facts.settings.window:g}, or lower store_timeout. Use the same values in every process.",
    )


def _words(concern: object) -> str:
    fields = concern.items() if isinstance(concern, dict) else ()
    return ", ".join(f"{name}={value}" for name, value in fields) or "that of a single server"


CHECKS = (
    reachable,
    lasting,
    write_concern,
    replica_set,
    retry_writes,
    regions,
    durability,
    settings,
    shared,
    lock,
    schema,
    clock,
    timeouts,
)
