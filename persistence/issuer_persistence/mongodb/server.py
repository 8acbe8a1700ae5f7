"""The MongoDB server of a store: its URL, the collections of the store, facts about the server, and its errors.

A database may also contain collections of other programs. So the names of our collections have a prefix, and a store is
created only if its three collections are empty. A store exists if the collection `meta` contains this document: `_id`
is "store", `id` is a text of 24 hexadecimal digits, and `schema` is an integer.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    DuplicateKeyError,
    InvalidName,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern
from pymongo.server_description import ServerDescription
from pymongo.uri_parser import parse_uri, split_options

from issuer_persistence.credentials import Credentials
from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed, tls_fails
from issuer_persistence.facts import StoreFacts, StoreSetting
from issuer_persistence.records import fresh_version, is_id, is_number
from issuer_persistence.urls import ENCODE, flaw, mask

Document = dict[str, Any]

#: Default prefix of the names of collections.
PREFIX = "issuer_"

#: The first versions used no prefix. If no prefix is configured, such collections are searched, too.
NO_PREFIX = ""

#: URL option that sets the prefix. pymongo rejects this option, so it is removed from the URL.
OPTION = "collectionPrefix"

_RESERVED_DATABASES = {"admin", "config", "local"}
_ALLOWED = re.compile(r"[A-Za-z0-9_-]{0,40}")

#: Schema of a database in which no tag has a scheme (number format).
SCHEMA_WITHOUT_SCHEMES = 1


class Collections(NamedTuple):
    """The collections of one store. Writes wait for a majority of the servers. Reads go to the primary server."""

    tags: Collection[Document]
    segments: Collection[Document]
    meta: Collection[Document]

    @classmethod
    def named(cls, database: Database[Document], prefix: str) -> Collections:
        """Return the collections with the given prefix. The server is not called."""
        collection = partial(
            database.get_collection,
            write_concern=WriteConcern("majority", j=True),
            read_preference=ReadPreference.PRIMARY,
            # Read the newest data of the primary, even if this data can still be rolled back. Each write checks the
            # data again.
            read_concern=ReadConcern("local"),
        )
        return cls(*(collection(prefix + name) for name in cls._fields))


def without_prefix(url: str) -> tuple[str, str | None]:
    """Remove the option `collectionPrefix` from a URL. Return the URL, and the option's value or None."""
    address, mark, query = url.partition("?")
    separator = "&" if "&" in query else ";"
    prefix, others = None, []
    for each in query.split(separator):
        name, _, value = each.partition("=")
        if name.lower() == OPTION.lower():
            prefix = unquote_plus(value)
        else:
            others.append(each)
    left = separator.join(others)
    return (f"{address}{mark}{left}" if left else address) if prefix is not None else url, prefix


def check_url(url: str, credentials: Credentials | None = None) -> None:  # noqa: C901 - one case per parser
    """Raise Misconfigured if pymongo rejects the URL, or if it has w=0 or names a system database. There is no I/O.

    `credentials`: if given, the URL must have no password.
    """
    shown = mask(url)
    if wrong := flaw(url):
        raise Misconfigured(f"{shown}: {wrong}")
    if options(url).get("w") == "0":
        raise Misconfigured(f"{shown}: w=0 is not reliable: remove it; majority is used in any case")
    address, _, parameters = without_prefix(url)[0].partition("?")
    unchecked = ["tls", "ssl"]  # loading certificates takes 20 ms
    if address.startswith("mongodb+srv://"):  # pymongo would query the DNS
        address = address.replace("+srv", "", 1)
        unchecked.append("srv")
    try:
        parsed = parse_uri(address)
        name = parsed["database"]
    except (ConfigurationError, ValueError):
        raise Misconfigured(f"{shown}: the login or a host is invalid; {ENCODE}") from None
    if credentials is not None:
        credentials.forbid(parsed["password"], shown)
    if name in _RESERVED_DATABASES:
        raise Misconfigured(
            f"{shown}: {name!r} is MongoDB's own; use another database, and ?authSource={name} to log in"
        )
    try:
        if parameters:
            split_options(parameters)
    except OSError as error:  # a certificate file
        raise Misconfigured(f"{shown}: a file in a parameter of the URL cannot be read: {error.strerror}") from None
    except (ConfigurationError, LookupError, ValueError, TypeError):
        raise Misconfigured(f"{shown}: a parameter is unknown to pymongo, or its value is invalid") from None
    # Only a client checks whether the parameters fit together.
    fitting = "&".join(each for each in re.split("[&;]", parameters) if not each.lower().startswith(tuple(unchecked)))
    login: dict[str, Any] = {"password": "any"} if credentials is not None and parsed["username"] else {}
    try:
        MongoClient(f"{address}?{fitting}" if fitting else address, connect=False, **login).close()
    except ConfigurationError as error:
        raise Misconfigured(f"{shown}: {error}") from None


def checked(prefix: str) -> str:
    """Return the prefix. If it is not allowed in the name of a collection, raise Misconfigured."""
    if not _ALLOWED.fullmatch(prefix):
        raise Misconfigured("a collection prefix must consist of at most 40 letters, digits, _ and -")
    return prefix


def options(url: str) -> dict[str, str]:
    """Return the options of a URL, with their names in lower case."""
    return {name.lower(): value for name, value in parse_qsl(url.partition("?")[2])}


def find(database: Database[Document], prefix: str | None) -> tuple[Collections, Document] | None:
    """Return the collections and the `meta` document of the store in this database, or None if there is no store.

    If `prefix` is None, search collections with the default prefix, and collections without a prefix. If both are
    stores, raise Misconfigured.
    """
    found = []
    for each in (PREFIX, NO_PREFIX) if prefix is None else (prefix,):
        collections = Collections.named(database, each)
        meta = collections.meta.find_one({"_id": "store"}) or {}
        # Another program may have stored a document with this `_id`.
        if isinstance(meta.get("id"), str) and is_id(meta["id"]) and is_number(meta.get("schema"), 1):
            found.append((collections, meta))
    if len(found) > 1:
        raise Misconfigured(
            f"database {database.name!r} holds two stores: one in the collection {PREFIX + 'tags'!r}, and an older one "
            "in the collection 'tags'. They may issue the same numbers. Choose one store, in the store URL on every "
            f"machine: add ?{OPTION}={PREFIX} for the first, or ?{OPTION}= with an empty value for the older one"
        )
    return found[0] if found else None


def find_or_make(
    database: Database[Document], prefix: str | None, pause: Callable[[], None], *, make: bool
) -> tuple[Collections, Document | None, bool]:
    """Return the collections of the store, its `meta` document, and True if this call may have created the store.

    If the store exists, it is only read. So the call also works if MongoDB has no majority, and accepts no writes.

    Args:
        database: Database of the store.
        prefix: Prefix of the collections' names. None means the default prefix, or no prefix for an old store.
        pause: Function that waits before the next attempt.
        make: If False, a missing store is not created, and the document is None.

    Raises:
        Misconfigured: There is no store, but a collection with one of the names that it would use has documents. They
            may belong to another program.
    """
    made = False
    while True:
        found = find(database, prefix)
        if found is not None:
            return *found, made
        new = Collections.named(database, PREFIX if prefix is None else prefix)
        taken = next((each.name for each in new if each.find_one({}, {"_id": 1}) is not None), None)
        if taken is None and not make:
            return new, None, False
        if taken is None:
            made = True
            with suppress(DuplicateKeyError):  # another process was faster
                new.meta.insert_one({"_id": "store", "id": fresh_version(), "schema": SCHEMA_WITHOUT_SCHEMES})
        elif find(database, prefix) is None:  # look again: another process may have just created the store
            raise Misconfigured(
                f"the collection {taken!r} of database {database.name!r} has documents, but the collection "
                f"{new.meta.name!r} has no document of an issuer, so they may belong to another program. Nothing was "
                f"changed. Use another database, or other collections with ?{OPTION}=... in the URL. If a backup was "
                f"restored, also restore {new.meta.name!r}"
            )
        pause()


# MongoDB's error codes for a rejected request: Unauthorized, AuthenticationFailed, IllegalOperation, and the
# authentication error of Atlas.
_REFUSED = {13, 18, 20, 8000}

# Error codes for "retryable writes are not supported". Amazon DocumentDB has a code of its own, 301. Azure Cosmos DB
# (2, BadValue) and a standalone MongoDB server (20, IllegalOperation) use general codes. If the code is general, the
# text of the error must be checked, too.
_NO_RETRIES, _PERHAPS_NO_RETRIES = 301, {2, 20}


#: Services that can lose writes in a failover to another region. The keys are the ends of the services' host names.
_SERVICES = {".mongo.cosmos.azure.com": "cosmos-ru", ".mongocluster.cosmos.azure.com": "cosmos-vcore"}


def service(hosts: Iterable[str]) -> str | None:
    """Return the service of Azure that runs these hosts, or None. `doctor` has checks for such services."""
    found = {name for host in hosts for end, name in _SERVICES.items() if host.lower().endswith(end)}
    return min(found, default=None)


#: Rights that the store needs on its collections: tags, segments, meta. docs/operate/servers.md has a role with these.
_NEEDED = ({"find", "insert", "update", "remove"}, {"find", "insert", "update", "remove"}, {"find", "insert", "update"})

#: How often `facts` waits, each time up to 50 ms, until the driver has tried to reach each server of the replica set.
_WAITS = 40


def facts(collections: Collections, pause: Callable[[], None]) -> StoreFacts:
    """Return facts about the server and the client of the collections. `pause` waits a moment."""
    tags = collections.tags
    database = tags.database
    client = database.client
    hello = client.admin.command("hello")
    hosts = hello.get("hosts", ())
    time = hello.get("localTime")
    return StoreFacts(
        kind="mongodb",
        version=client.admin.command("buildInfo").get("version"),
        time=int(DatetimeMS(time)) if isinstance(time, datetime) else None,
        lasting=True,
        write_concern=tags.write_concern.document,
        asked_concern=database.write_concern.document,
        replica_set="sharded" if hello.get("msg") == "isdbgrid" else hello.get("setName", ""),
        members=len(hosts) or None,
        retry_writes=client.options.retry_writes,
        service=service(host for host, _ in client.nodes),
        settings=(*_rights(collections), *(_members(client, pause) if len(hosts) > 1 else ())),
    )


def _rights(collections: Collections) -> Iterator[StoreSetting]:
    """Check the rights of the user. MongoDB reports them to each user. Without access control, there is no user."""
    why = "Without all rights, reservations or commands fail."
    remedy = 'Grant the rights to the user. The page "Redis and stores" has a role with all that the issuer needs.'
    try:
        status = collections.tags.database.client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
        users, privileges = status["authenticatedUsers"], status["authenticatedUserPrivileges"]
    except (OperationFailure, KeyError):  # a service with the protocol of MongoDB may not have this command
        yield StoreSetting("missing rights", "the server does not report them", good=None, why=why, remedy=remedy)
        return
    missing = []
    for needed, collection in zip(_NEEDED, collections, strict=True):
        held = set()
        for each in privileges:
            database, name = each["resource"].get("db"), each["resource"].get("collection")
            here = database in {"", collection.database.name} and name in {"", collection.name}
            if here or "anyResource" in each["resource"]:
                held |= set(each["actions"])
        if not needed <= held and "anyAction" not in held:
            missing.append(f"{', '.join(sorted(needed - held))} on {collection.full_name}")
    if users:
        yield StoreSetting("missing rights", "; ".join(missing) or "none", good=not missing, why=why, remedy=remedy)


def _members(client: MongoClient[Document], pause: Callable[[], None]) -> Iterator[StoreSetting]:
    """Check whether the driver uses and reaches all servers of the replica set."""
    if client.topology_description.topology_type_name == "Single":
        yield StoreSetting(
            "directConnection",
            "true",
            good=False,
            why="The issuer uses only the server in the URL. When another one is primary, no segment can be reserved.",
            remedy="Remove directConnection from the URL.",
        )
        return
    servers: list[ServerDescription] = []
    for _ in range(_WAITS):
        servers = [*client.topology_description.server_descriptions().values()]
        if all(each.is_server_type_known or each.error for each in servers):
            break
        pause()
    away = [each for each in servers if not each.is_readable and each.server_type_name != "RSArbiter"]
    names = ", ".join("{}:{}".format(*each.address) for each in away)
    yield StoreSetting(
        "servers of the replica set",
        f"{len(servers) - len(away)} of {len(servers)} are available" + (f"; not available: {names}" if away else ""),
        good=not away,
        why="If a majority of the servers is not available, no segment can be reserved.",
        remedy="Start the servers that are not available, or remove them from the replica set.",
    )


def translated(error: Exception, url: str, *, in_doubt: bool) -> StoreError:
    """Turn an error of pymongo, bson or dnspython into an error of `issuer_persistence.errors`.

    If `in_doubt` is True, the call may have changed something. Then the result is Unconfirmed, because Misconfigured
    would mean that nothing was changed.
    """
    wrong = isinstance(error, ConfigurationError | InvalidName)
    text = _said(error)
    if isinstance(error, OperationFailure):
        wrong = refuses(error.code, text)
        if _knows_no_retries(error.code, text):
            text = "this server does not support retryable writes: add retryWrites=false to the URL"
    if isinstance(error, ServerSelectionTimeoutError):
        wrong = _unknown_hosts(error) or tls_fails(text)
    if wrong and in_doubt:
        return Unconfirmed(f"{url}: {text}; the request may have taken effect")
    return (Misconfigured if wrong else Unconfirmed)(f"{url}: {text}")


#: Parts that pymongo adds to a text: the server's whole reply, settings, measured times, a description of all servers.
_ADDED = re.compile(r", (full error|Timeout|remaining timeout):.*| \(configured timeouts.*", re.DOTALL)

#: The command with all its values, in the server's text.
_COMMAND = re.compile(r'\{ (\w+): "([^"]*)", .*', re.DOTALL)


def _said(error: Exception) -> str:
    """Return what an error of pymongo says, with the server's name for it, and without dumps."""
    reply: Any = getattr(error, "details", None)
    unconfirmed = isinstance(error, WriteConcernError)
    if isinstance(error, BulkWriteError):
        unconfirmed = not reply["writeErrors"]
        reply = (reply["writeErrors"] or reply["writeConcernErrors"])[0]
    if not isinstance(reply, Mapping):
        reply = {}
    text = _COMMAND.sub(r"\1 on \2", _ADDED.sub("", reply.get("errmsg", str(error))))
    if "codeName" in reply:
        text += f" ({reply['codeName']})"
    return f"the write did not reach a majority of the servers, and may be rolled back: {text}" if unconfirmed else text


def refuses(code: object, text: str) -> bool:
    """Return True if an error means that the server has rejected the request for good, and changed nothing."""
    return code in _REFUSED or _knows_no_retries(code, text)


def refuses_login(error: Exception) -> bool:
    """Return True if the server has refused the login of a connection. Code 8000 is that of Atlas."""
    return isinstance(error, OperationFailure) and error.code in {18, 8000}


def _knows_no_retries(code: object, text: str) -> bool:
    said = text.lower()
    about = "retryable write" in said or "retrywrites" in said or "transaction numbers" in said
    return code == _NO_RETRIES or (code in _PERHAPS_NO_RETRIES and about)


def _unknown_hosts(error: ServerSelectionTimeoutError) -> bool:
    """Return True if none of the URL's host names exists. If the DNS does not answer, return False: it may recover."""
    topology: Any = error.details
    servers = topology.server_descriptions().values() if hasattr(topology, "server_descriptions") else ()
    causes = [getattr(each.error, "__cause__", None) for each in servers]
    return bool(causes) and all(
        isinstance(each, socket.gaierror) and each.errno == socket.EAI_NONAME for each in causes
    )
