"""The collections of a store in MongoDB: their names, and the `meta` document that marks them as the issuer's.

A database may also have collections of other programs. So the names have a prefix, and a store is created only if its
three collections are empty. An existing store is recognized by its `meta` document: `_id` is "store", `id` has 24
hexadecimal digits, and `schema` is an integer.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote_plus

from pymongo import ReadPreference, WriteConcern
from pymongo.errors import ConfigurationError, DuplicateKeyError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri, split_options

from issuer_persistence.errors import Misconfigured
from issuer_persistence.records import fresh_version, is_id, is_number
from issuer_persistence.urls import ENCODE, flaw, mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from pymongo.collection import Collection
    from pymongo.database import Database

Document = dict[str, Any]

#: Default prefix of the collections' names.
PREFIX = "issuer_"

#: Prefix in databases of the first versions. It is tried only if no prefix is given.
NO_PREFIX = ""

#: URL option that sets the prefix. It is removed before pymongo gets the URL.
OPTION = "collectionPrefix"

_RESERVED_DATABASES = {"admin", "config", "local"}
_ALLOWED = re.compile(r"[A-Za-z0-9_-]{0,40}")

#: Version of a database in which no tag has a scheme.
SCHEMA_WITHOUT_SCHEMES = 1


class Collections(NamedTuple):
    """The collections of one store. Writes use majority and journal, and reads go to the primary."""

    tags: Collection[Document]
    segments: Collection[Document]
    meta: Collection[Document]

    @classmethod
    def named(cls, database: Database[Document], prefix: str) -> Collections:
        """Return the collections with this prefix, without I/O."""

        def collection(name: str) -> Collection[Document]:
            return database.get_collection(
                prefix + name,
                write_concern=WriteConcern("majority", j=True),
                read_preference=ReadPreference.PRIMARY,
                # The newest data of the primary. The filter of each write checks it again.
                read_concern=ReadConcern("local"),
            )

        return cls(collection("tags"), collection("segments"), collection("meta"))


def without_prefix(url: str) -> tuple[str, str | None]:
    """Return the URL without the issuer's option, and the prefix. None if the URL sets no prefix."""
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


def check_url(url: str) -> None:
    """Raise Misconfigured if the URL is invalid, has w=0 or names a system database. No I/O, and no DNS query."""
    shown = mask(url)
    if wrong := flaw(url):
        raise Misconfigured(f"{shown}: {wrong}")
    if options(url).get("w") == "0":
        raise Misconfigured(f"{shown}: w=0 is not reliable: remove it; majority is used in any case")
    plain, _ = without_prefix(url)
    parameters = plain.partition("?")[2]
    try:
        if parameters:
            split_options(parameters)
    except OSError as error:  # a certificate file
        raise Misconfigured(f"{shown}: a file in a parameter of the URL cannot be read: {error.strerror}") from None
    except (ConfigurationError, ValueError, TypeError):
        raise Misconfigured(f"{shown}: a parameter is unknown to pymongo, or its value is invalid") from None
    if url.startswith("mongodb+srv"):  # to parse more, pymongo queries the DNS
        return
    try:
        name = parse_uri(plain)["database"]
    except (ConfigurationError, ValueError):
        raise Misconfigured(
            f"{shown}: the login or a host is invalid, or a parameter does not fit the hosts; {ENCODE}"
        ) from None
    if name in _RESERVED_DATABASES:
        raise Misconfigured(
            f"{shown}: {name!r} is MongoDB's own; use another database, and ?authSource={name} to log in"
        )


def checked(prefix: str) -> str:
    """Return the prefix. Raise Misconfigured if it is invalid in a collection's name."""
    if not _ALLOWED.fullmatch(prefix):
        raise Misconfigured("a collection prefix must consist of at most 40 letters, digits, _ and -")
    return prefix


def options(url: str) -> dict[str, str]:
    """Return the options of a URL, their names in lower case."""
    return {name.lower(): value for name, value in parse_qsl(url.partition("?")[2])}


def ours(found: Document) -> bool:
    """Return True if an issuer has written this `meta` document."""
    store_id = found.get("id")
    return isinstance(store_id, str) and is_id(store_id) and is_number(found.get("schema"), 1)


def find(database: Database[Document], prefix: str | None) -> tuple[Collections, Document] | None:
    """Return the collections and the `meta` document of an existing store. None if there is no store.

    If there are two stores and no prefix is given, raise Misconfigured.
    """
    found = []
    for each in (PREFIX, NO_PREFIX) if prefix is None else (prefix,):
        collections = Collections.named(database, each)
        meta = collections.meta.find_one({"_id": "store"})
        if meta is not None and ours(meta):
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

    An existing store is only read, so that a server without a majority also answers. If there is no store and `make` is
    False, nothing is created, and the document is None. If there is no store, but one of its collections has documents,
    raise Misconfigured.
    """
    made = False
    while True:
        found = find(database, prefix)
        if found is not None:
            return *found, made
        new = Collections.named(database, PREFIX if prefix is None else prefix)
        taken = next((each.name for each in new if each.find_one({}, {"_id": 1}) is not None), None)
        # If another process has created the store meanwhile, the document is that of the store.
        if taken is None and not make:
            return new, None, False
        if taken is None:
            made = True
            with suppress(DuplicateKeyError):  # another process was faster
                new.meta.insert_one({"_id": "store", "id": fresh_version(), "schema": SCHEMA_WITHOUT_SCHEMES})
        elif find(database, prefix) is None:
            raise Misconfigured(
                f"the collection {taken!r} of database {database.name!r} has documents, but the collection "
                f"{new.meta.name!r} has no document of an issuer, so they may belong to another program. Nothing was "
                f"changed. Use another database, or other collections with ?{OPTION}=... in the URL. If a backup was "
                f"restored, also restore {new.meta.name!r}"
            )
        pause()
