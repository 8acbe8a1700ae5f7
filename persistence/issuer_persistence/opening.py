"""From a URL to a store. A store's module is imported when a URL names it, not before."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured
from issuer_persistence.urls import mask

#: The group of entry points in which other distributions register stores, by the scheme of their URLs.
GROUP = "issuer.stores"

#: The URLs of our own stores, as messages and the documentation show them.
FORMS = (
    "mongodb://host/database",
    "mongodb+srv://host/database",
    "sqlite:///relative/path",
    "sqlite:////absolute/path",
    "memory://",
    "memory://name",
)

#: Our own stores by the scheme of their URLs. They need no entry points: a frozen program has none.
_OURS = {
    "mongodb": ("mongodb", "MongoStore"),
    "mongodb+srv": ("mongodb", "MongoStore"),
    "sqlite": ("sqlite", "SQLiteStore"),
    "memory": ("memory", "MemoryStore"),
}


def store_class(url: str) -> type[Store]:
    """Import and return the class of the store that a URL names.

    Args:
        url: URL of a store. Its scheme is one of ours, or the name of an entry point in the group `issuer.stores`.

    Raises:
        Misconfigured: No store has this scheme.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme in _OURS:
        module, name = _OURS[scheme]
        found: type[Store] = getattr(import_module(f"issuer_persistence.{module}"), name)
        return found
    for entry in entry_points(group=GROUP, name=scheme) if separator else ():
        loaded = entry.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Store)):
            raise Misconfigured(f"the entry point {GROUP}:{scheme} ({entry.value}) is not a subclass of issuer.Store")
        return loaded
    raise Misconfigured(f"{mask(url)} is not the URL of a store; use one of: {', '.join(FORMS)}")


def open_store(url: str) -> Store:
    """Return the store that a URL names. No I/O: a store that is away shows at the first call.

    Args:
        url: URL of a store, see `store_class`.

    Raises:
        Misconfigured: No store has this scheme, or the store rejects the URL.
    """
    return store_class(url).open(url)
