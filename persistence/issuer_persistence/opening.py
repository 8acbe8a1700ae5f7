"""From a URL to a store. The module of a store is imported when a URL names it, not before."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured
from issuer_persistence.urls import mask

#: The group of entry points in which other distributions register stores, by the scheme of their URLs.
GROUP = "issuer.stores"

#: Our own stores: the forms of their URLs, with the class that opens them. They need no entry points, because a frozen
#: program has none.
OURS = {
    "mongodb://host/database": "mongodb:MongoStore",
    "mongodb+srv://host/database": "mongodb:MongoStore",
    "sqlite:///relative/path": "sqlite:SQLiteStore",
    "sqlite:////absolute/path": "sqlite:SQLiteStore",
    "memory://": "memory:MemoryStore",
    "memory://name": "memory:MemoryStore",
}

_CLASSES = {form.partition("://")[0]: place for form, place in OURS.items()}


def store_class(url: str) -> type[Store]:
    """Import and return the class of the store that a URL names.

    Args:
        url: URL of a store. Its scheme is one of ours, or the name of an entry point in the group `issuer.stores`.

    Raises:
        Misconfigured: No store has this scheme.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _CLASSES:
        module, _, name = _CLASSES[scheme].partition(":")
        found: type[Store] = getattr(import_module(f"issuer_persistence.{module}"), name)
        return found
    for entry in entry_points(group=GROUP, name=scheme) if separator else ():
        loaded = entry.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Store)):
            raise Misconfigured(f"the entry point {GROUP}:{scheme} ({entry.value}) is not a subclass of issuer.Store")
        return loaded
    raise Misconfigured(f"{mask(url)} is not the URL of a store; use one of: {', '.join(OURS)}")


def open_store(url: str) -> Store:
    """Return the store that a URL names, without any I/O. If the store does not answer, the first call raises.

    Args:
        url: URL of a store, see `store_class`.

    Raises:
        Misconfigured: No store has this scheme, or the store rejects the URL.
    """
    return store_class(url).open(url)


def file_path(url: str) -> str:
    """Return the path of the file that a URL names. "" if the store does not keep its data in one file.

    Args:
        url: URL of a store.
    """
    _, _, path = url.partition(":///")
    try:
        return path if path and store_class(url).in_file else ""
    except Misconfigured:  # opening the store reports it
        return ""
