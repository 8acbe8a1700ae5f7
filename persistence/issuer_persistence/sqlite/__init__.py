"""A store in one SQLite file. `store` has the class; the other modules are its parts."""

from issuer_persistence.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
