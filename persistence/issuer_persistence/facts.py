"""Facts that a store reports about itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: What a setting of the server makes possible, for the doctor.
LOST = "A power cut or a crash of the machine loses commits that were confirmed. Then a segment is reserved twice."
TORN = "A power cut can damage a page of the tables."
READS_ONLY = "The server accepts no writes, so nothing can be reserved."
BEHIND = "A replica that takes over may lack commits that were confirmed. Then a segment is reserved twice."


class Upgrade(NamedTuple):
    """Versions of a store's schema before and after an upgrade. The schema is the layout of the store's tables.

    A store without a schema returns 1 for both versions.

    Attributes:
        before: Version before the upgrade. 0 if nothing was written yet.
        after: Version after the upgrade.
    """

    before: int
    after: int


class StoreSetting(NamedTuple):
    """A setting of the store's server that decides whether reservations succeed, and confirmed commits last.

    Attributes:
        name: Name of the setting.
        value: Its value.
        good: True if this value is right. None if that depends on what the server does not show.
        why: What happens otherwise.
        remedy: What to do if the value is not good.
    """

    name: str
    value: str
    good: bool | None
    why: str
    remedy: str


class Sharing(NamedTuple):
    """The table of another program that a store uses.

    Attributes:
        program: Name of the program.
        table: Name of its table.
        adopted: True if the program should no longer draw from the table, see `Store.adopt`.
        moved: Tags from which the program has drawn although the table was adopted, at most 10.
    """

    program: str
    table: str
    adopted: bool
    moved: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts about the configuration of a store, for `doctor`.

    A fact is None if it does not apply to this kind of store, or if the store cannot find it out.

    Attributes:
        kind: Kind of store: "mongodb", "sqlite", "memory", or else the part of the URL before "://".
        version: Version of the server or library.
        own_clock: True if the store has a clock of its own. False if the store uses the clock of this machine.
        time: Time of the store's own clock, in ms since 1970. None if the time is unknown, or if the store has no
            clock.
        lasting: True if the data outlives the process.
        write_concern: Write concern that the store uses for its writes. The URL cannot change it.
        asked_concern: Write concern that the URL requests.
        replica_set: Name of the replica set, "sharded" for a sharded cluster, or "" for a standalone server.
        members: How many servers in the replica set hold data.
        retry_writes: True if the driver retries writes.
        service: Service that runs the server, recognized by its host names: "cosmos-ru" or "cosmos-vcore".
        journal: Setting `journal_mode` of SQLite, which has nothing to do with the issuer's own journal.
        synchronous: Setting `synchronous` of SQLite.
        schema: Version of the schema. 0 if nothing was written yet.
        newest_schema: Version of the schema that this program writes.
        settings: Settings of the server of MongoDB or an SQL database, see `StoreSetting`.
        sharing: The table of another program that the store uses. None if its tables are its own.
        open_elsewhere: True if a program that does not use the store's lock file has the SQLite file open.
    """

    kind: str
    version: str | None = None
    own_clock: bool = True
    time: int | None = None
    lasting: bool | None = None
    write_concern: Mapping[str, object] | None = None
    asked_concern: Mapping[str, object] | None = None
    replica_set: str | None = None
    members: int | None = None
    retry_writes: bool | None = None
    service: str | None = None
    journal: str | None = None
    synchronous: int | None = None
    schema: int | None = None
    newest_schema: int | None = None
    settings: tuple[StoreSetting, ...] = ()
    sharing: Sharing | None = None
    open_elsewhere: bool | None = None
