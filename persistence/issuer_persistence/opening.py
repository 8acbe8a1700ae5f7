"""From a URL to a store. Drivers are imported when a URL asks for them, not before."""

from __future__ import annotations

from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured
from issuer_persistence.urls import has_parameters, mask

#: The URLs that `open_store` understands, as messages and the documentation show them.
FORMS = (
    "mongodb://host/database",
    "mongodb+srv://host/database",
    "sqlite:///relative/path",
    "sqlite:////absolute/path",
    "memory://",
    "memory://name",
)


def open_store(url: str) -> Store:
    """Return the store that the URL names. Does no I/O: a store that is away shows at the first call.

    An SQLite path is taken as it stands (no percent-encoding): it may hold blanks, `?`, `#` and any letter. What looks
    like parameters behind it is refused: another file would begin another store.
    `memory://` is a new store each time, `memory://name` the same one for the whole process. Raises Misconfigured for
    any other scheme, and for a URL that can't be meant.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme in {"mongodb", "mongodb+srv"}:
        from issuer_persistence.mongodb import MongoStore

        return MongoStore.open(url)
    if separator and scheme == "sqlite":
        from issuer_persistence.sqlite import SQLiteStore

        if not rest.startswith("/") or rest == "/":
            raise Misconfigured(f"{mask(url)}: write sqlite:///relative/path or sqlite:////absolute/path")
        if has_parameters(rest):
            raise Misconfigured(
                f"{mask(url)}: the URL of an SQLite file has no parameters: remove the '?' and all that follows"
            )
        return SQLiteStore(rest[1:])
    if separator and scheme == "memory":
        from issuer_persistence.memory import MemoryStore

        if mask(url) != url:
            raise Misconfigured(f"{mask(url)}: the name of a store in memory must consist of letters, digits, . and -")
        return MemoryStore.named(rest) if rest else MemoryStore()
    raise Misconfigured(f"{mask(url)} is not the URL of a store; use one of: {', '.join(FORMS)}")
