"""Answers calls that read the same of many tags by one request to MongoDB."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from issuer_persistence.ledger import LedgerEntry, LedgerPage
from issuer_persistence.mongodb.call import DOWN, INDEX, Document, MongoCall, entry_row, tag_record
from issuer_persistence.reads import Read, ReadLedger, ReadSegments, ReadTag
from issuer_persistence.records import tried

#: The newest entries of each tag are read as whole ledgers, if these are so short that one request has the ledgers of
#: more than 1/8 of the tags. 8 entries take the server as long as to look up one tag.
_SHARE = 8


def answered(call: MongoCall, reads: Sequence[Read[Any]]) -> list[Any]:
    """Return the answers to the first of the calls: to one at least, or to none if they must be made one by one.

    `reads`: calls that read the same of different tags, sorted by name of the tag.
    """
    tags = [each.tag for each in reads]
    match reads[0]:
        case ReadTag():
            found = {each["_id"]: each for each in call.tags.find({"_id": {"$in": tags}}, batch_size=len(tags) + 1)}
            return [tried(tag_record, found[tag]) if tag in found else None for tag in tags]
        case ReadLedger(newest=newest) if newest > 0:
            ledgers, cut = _first_rows(call, tags, newest * len(tags))
            known = ledgers[:-1] if cut and len(ledgers[-1]) < newest else ledgers
            if len(known) * _SHARE < len(tags):
                known = _newest_rows(call, tags, newest)
            return [tried(_entries, rows[:newest]) for rows in known]
        case ReadSegments(count=count, beyond=None):
            ledgers, cut = _first_rows(call, tags, count)
            pages = [LedgerPage.of(rows, count + 1) for rows in ledgers]
            # The last page ends before its ledger does.
            return [*pages[:-1], LedgerPage.of(ledgers[-1], len(ledgers[-1]))] if cut else pages
    return []


def _entries(rows: Sequence[Document]) -> list[LedgerEntry]:
    return [*map(LedgerEntry.checked, rows)]


def _first_rows(call: MongoCall, tags: Sequence[str], count: int) -> tuple[list[list[Document]], bool]:
    """Read `count` ledger entries of all tags together, and return the documents of each tag, with the newest first.

    Tags after the last entry are left out. The second value is True if the last ledger may have more entries.
    """
    limit = min(count, 2**31 - 1)
    found = call.segments.find({"tag": {"$in": tags}}, sort=INDEX, limit=limit, batch_size=limit)
    rows = [*map(entry_row, found)]
    if any(isinstance(each["tag"], list) for each in rows):
        return [], False  # a document of another program has several tags
    ledgers = {tag: [*each] for tag, each in groupby(rows, lambda row: row["tag"])}
    cut = len(rows) == limit
    covered = [tag for tag in tags if tag <= rows[-1]["tag"]] if cut else tags
    return [ledgers.get(tag, []) for tag in covered], cut


def _newest_rows(call: MongoCall, tags: Sequence[str], newest: int) -> list[list[Document]]:
    """Return the documents of the newest ledger entries of each tag, however long the ledgers are.

    The server jumps in the index from tag to tag, and reads no other entries. Without the index it would read the whole
    ledger for each tag. Because of `hint`, it reports an error instead.
    """
    own: list[Document] = [
        {"$match": {"$expr": {"$eq": ["$tag", "$$tag"]}}},
        {"$sort": dict(DOWN)},
        {"$limit": newest},
    ]
    pipeline: list[Document] = [
        {"$match": {"tag": {"$in": tags}}},
        {"$group": {"_id": "$tag"}},
        {"$lookup": {"from": call.segments.name, "let": {"tag": "$_id"}, "pipeline": own, "as": "rows"}},
    ]
    found = [*call.segments.aggregate(pipeline, hint=dict(INDEX))]
    if any(isinstance(each["_id"], list) for each in found):
        return []
    ledgers = {each["_id"]: [*map(entry_row, each["rows"])] for each in found}
    return [ledgers.get(tag, []) for tag in tags]
