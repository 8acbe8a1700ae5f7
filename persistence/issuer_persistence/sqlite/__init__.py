"""A store in one SQLite file. The class is in the module `store`, which uses the other modules."""

from issuer_persistence.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
