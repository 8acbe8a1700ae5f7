"""A store in MongoDB. The class is in the module `store`, which uses the other modules."""

from issuer_persistence.mongodb.store import MongoStore

__all__ = ["MongoStore"]
