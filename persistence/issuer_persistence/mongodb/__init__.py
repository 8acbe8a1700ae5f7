"""A store in MongoDB. `store` has the class; the other modules are its parts."""

from issuer_persistence.mongodb.store import MongoStore

__all__ = ["MongoStore"]
