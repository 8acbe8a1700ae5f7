"""The MongoDB calls of a walk that deletes old ledger entries, see `issuer_persistence.pruning.Ledger`."""

from __future__ import annotations

from collections.abc import Sequence

from issuer_persistence.ledger import Position
from issuer_persistence.mongodb.call import INDEX, OUR_ENTRY, Document, MongoCall, following
from issuer_persistence.pruning import Ledger, Walked

#: The index sorts a tag's highest number first, so it is read backward, the last tag first.
_BACKWARD = [(name, -direction) for name, direction in INDEX]
_FIELDS = ["tag", "high", "low", "time"]


class MongoLedger(Ledger):
    """The ledger in one call to the store. pymongo tells the server the call's time limit in each request."""

    def __init__(self, call: MongoCall) -> None:
        self._call = call
        self._store = {"_id": "store", "id": call.store_id}

    def progress(self) -> str:
        return str((self._call.meta.find_one(self._store) or {}).get("pruning", ""))

    def note_progress(self, progress: str) -> None:
        """See `Ledger`. Other programs keep unknown fields of this document."""
        with self._call.write():
            self._call.meta.update_one(self._store, {"$set": {"pruning": progress}})

    def oldest(self, tag: str, beyond: Position | None, count: int) -> list[Walked]:
        """See `Ledger`. Documents of other programs are left out."""
        place: Document = {"tag": {"$lt": tag} if tag else {"$type": "string"}}
        if beyond is not None:
            place = {"tag": tag, **following(beyond, upward=True)}
        found = self._call.segments.find({**place, "$and": [OUR_ENTRY]}, _FIELDS).sort(_BACKWARD).limit(count)
        return [Walked(*(each[name] for name in ("tag", "high", "low", "_id", "time"))) for each in found]

    def drop(self, ids: Sequence[str]) -> None:
        with self._call.write():
            self._call.segments.delete_many({"_id": {"$in": [*ids]}})
