"""Open the store that a URL names. The module of a store is imported only when a URL needs it."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured
from issuer_persistence.urls import mask, parameters, usual

#: Group of entry points in which other distributions register their stores. The name of an entry is a URL scheme.
GROUP = "issuer.stores"

#: Built-in stores: forms of URLs, each with its class. These stores are not entry points, because a program that was
#: frozen into one executable has no entry points.
OURS = {
    "mongodb://host/database": "mongodb:MongoStore",
    "mongodb+srv://host/database": "mongodb:MongoStore",
    "postgresql://host/database": "sql.postgresql:PostgreSQLStore",
    "mysql://host/database": "sql.mysql:MySQLStore",
    "mariadb://host/database": "sql.mysql:MySQLStore",
    "mysql://host/database?layout=leaf": "sql.shared_row:SharedRowStore",
    "sqlite:///relative/path": "sqlite:SQLiteStore",
    "sqlite:////absolute/path": "sqlite:SQLiteStore",
    "issuer+https://TOKEN@host": "remote:RemoteStore",
    "issuer+http://TOKEN@host": "remote:RemoteStore",
    "memory://": "memory:MemoryStore",
    "memory://name": "memory:MemoryStore",
}

_CLASSES = {form.partition("://")[0]: place for form, place in OURS.items() if "?" not in form}

#: The class of a store in MySQL on the table of another program.
_ON_ANOTHERS = OURS["mysql://host/database?layout=leaf"]


def store_class(url: str) -> type[Store]:
    """Import and return the class of the store that a URL names. If no class is found, raise Misconfigured.

    The URL's scheme is one of those in `OURS`, or the name of an entry point in the group `issuer.stores`.
    """
    scheme, separator, _ = usual(url).partition("://")
    if separator and scheme in _CLASSES:
        on_anothers = scheme in ("mysql", "mariadb") and "layout" in parameters(url)[1]
        module, _, name = (_ON_ANOTHERS if on_anothers else _CLASSES[scheme]).partition(":")
        found: type[Store] = getattr(import_module(f"issuer_persistence.{module}"), name)
        return found
    for entry in entry_points(group=GROUP, name=scheme) if separator else ():
        loaded = entry.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Store)):
            raise Misconfigured(f"the entry point {GROUP}:{scheme} ({entry.value}) is not a subclass of issuer.Store")
        return loaded
    raise Misconfigured(f"{mask(url)} is not the URL of a store; use one of: {', '.join(OURS)}")


def open_store(url: str) -> Store:
    """Return the store that a URL names, without any I/O. If the URL is wrong, raise Misconfigured."""
    return store_class(url).open(url)


def file_path(url: str) -> str:
    """Return the path of the file that a store's URL names. "" if the store does not keep its data in one file."""
    _, _, path = url.partition(":///")
    try:
        return path if path and store_class(url).in_file else ""
    except Misconfigured:  # `open_store` reports a wrong URL
        return ""
