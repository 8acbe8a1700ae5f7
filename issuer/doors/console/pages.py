"""The content of the console's pages. The functions that compute it also serve the command line."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final, NamedTuple

from msgspec import convert

from issuer.api.aio import AsyncIssuer
from issuer.board import outlook
from issuer.board.file import SORTS, BoardFile
from issuer.board.health import STALE, Health
from issuer.board.rows import STATES
from issuer.care.chronicle import Chronicle
from issuer.care.inspection import Inspection
from issuer.care.verification import Provenance
from issuer.doors.console import charts
from issuer.errors import InvalidArgument, IssuerError, RedisUnavailable, StoreUnavailable
from issuer.views import said as said_by
from issuer.views import state, view
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import HIGHEST, PACING, now_ms

#: Rows of a page of the overview, and ledger entries that a tag's page reads.
ROWS: Final = 50
ENTRIES: Final = 200
#: Seconds that a page waits for Redis and the store. Then it shows what was known last. A call of the store may take a
#: quarter of a second longer.
WITHIN: Final = 0.5
#: A number, as a visitor writes it. Other texts may be numbers of a tag with a format.
_NUMBER: Final = re.compile("[0-9]{1,19}")
#: The overview says when its values were read if this is more than so many ms ago.
OLD: Final = 30_000
#: Milliseconds for which workers show the same values of a tag again.
FRESH: Final = 1000
#: Milliseconds of the line of events of the overview: one day.
DAY: Final = 86_400_000


class Standing(NamedTuple):
    """The health of the issuer, for the top of each page. `age`: of what the page shows, in ms."""

    health: Health
    level: str
    text: str
    age: int


class Pages:
    """The content of the pages, for the templates."""

    def __init__(self, ids: AsyncIssuer, file: BoardFile) -> None:
        self._ids, self._file = ids, file

    def health(self) -> Standing:
        """Return whether numbers are being issued, and how old this knowledge is."""
        fact = self._file.fact("health")
        if fact is None:
            return Standing(Health(), "risk", "The console has just started and has read no tags yet.", 0)
        health, age = Health(**fact.content), now_ms() - fact.at
        level, text = health.verdict
        if age > STALE:
            level, text = (
                "risk",
                f"The values are old, because the console's collector does not run. Last known: {text}",
            )
        return Standing(health, level, text, age)

    def _chronicle(self) -> Chronicle:
        fact = self._file.fact("chronicle")
        return Chronicle() if fact is None else convert(fact.content, Chronicle)

    # ------------------------------------------------------------------ overview

    def overview(self, said: Mapping[str, str]) -> dict[str, Any]:
        """Return the overview: a page of the tags, and the events of the last day."""
        sort, sought, chosen = said.get("sort", "runway"), said.get("q", "").strip(), said.get("state", "")
        if sort not in SORTS:
            raise InvalidArgument(f"must be one of {', '.join(SORTS)}", value=sort, argument="sort")
        if chosen and chosen not in STATES:
            raise InvalidArgument(f"must be one of {', '.join(STATES)}", value=chosen, argument="state")
        at = _page(said)
        rows, total = self._file.page(sort, sought, chosen, (at - 1) * ROWS, ROWS)
        since = now_ms() - DAY
        happenings = [each for each in self._chronicle().happenings if each.time >= since]
        return {
            "rows": [(row, charts.spark(outlook.rates(row.tail, charts.SPARK_PARTS))) for row in rows],
            "total": total,
            "read": max((row.read for row in rows), default=0),
            "old": rows and now_ms() - max(row.read for row in rows) > OLD,
            "sort": sort,
            "q": sought,
            "chosen": chosen,
            "at": at,
            "last": max(1, -(-total // ROWS)),
            "states": STATES,
            "marks": [(round(100 * (each.time - since) / DAY, 1), each) for each in happenings[:200]],
            "happenings": happenings[:8],
            "more": max(0, len(happenings) - 8),
            "done": _done(said),
        }

    # ------------------------------------------------------------------ a tag

    async def tag(self, said: Mapping[str, str]) -> dict[str, Any]:
        """Return the page of a tag."""
        tag = said.get("tag", "")
        number = said.get("number", "").strip()
        (seen, entries, read, error), found = await asyncio.gather(
            self._seen(tag, fresh=0 if _done(said) else FRESH), self._who(tag, number)
        )
        chronicle = self._chronicle()
        acts = [each for each in chronicle.acts if each.tag == tag]
        begin = now_ms() - SPANS[_span(said)]
        shown = [each for each in entries if each.time >= begin] or entries[:2]
        rates = outlook.rates(shown, charts.CHART_PARTS)
        return {
            "tag": tag,
            "row": next(iter(self._file.rows([tag]).values()), None),
            "seen": seen,
            "read": read,
            "error": error,
            "ahead": None if seen is None else _ahead(seen),
            "rates": rates,
            "line": charts.line(rates),
            "top": max((rate for _, _, rate in rates), default=0.0),
            "span": _span(said),
            "spans": SPANS,
            "entries": entries[:25],
            "gaps": outlook.gaps(entries, seen.store.max, acts)[:50] if seen is not None and entries else [],
            "hour": None if seen is None else _hour(seen),
            "settings": {} if seen is None else _settings(seen),
            "acts": acts[:20],
            "happenings": [each for each in chronicle.happenings if tag in each.tags][:20],
            "number": number,
            "found": found,
            "done": _done(said),
        }

    async def export(self, said: Mapping[str, str]) -> dict[str, Any]:
        """Return the state of a tag, its ledger and its gaps, for JSON."""
        tag = said.get("tag", "")
        seen, entries, read, error = await self._seen(tag)
        acts = [each for each in self._chronicle().acts if each.tag == tag]
        return {
            "tag": tag,
            "read": read,
            "error": error,
            "state": None if seen is None else view(seen),
            "segments": list(map(view, entries)),
            "gaps": [asdict(each) for each in outlook.gaps(entries, seen.store.max, acts)] if seen is not None else [],
            "acts": [asdict(each) for each in acts],
        }

    async def _seen(self, tag: str, fresh: int = FRESH) -> tuple[Inspection | None, list[LedgerEntry], int, str]:
        """Return the state and the newest ledger entries of a tag, when they were read, and why they are old.

        If Redis and the store do not answer in time, return what was known last. `fresh`: milliseconds for which known
        values are shown again. After an act they are not.
        """
        error = ""
        kept = self._file.fact(f"tag {tag}")
        if kept is None or now_ms() - kept.at >= fresh:
            try:
                found = await asyncio.gather(
                    self._ids.inspect(tag, timeout=WITHIN), self._ids.segments(tag, ENTRIES, timeout=WITHIN)
                )
            except (StoreUnavailable, RedisUnavailable):
                error = "Redis or the store did not answer in time"
            else:
                seen, page = found
                error = seen.redis_error or ""
                content = {"state": asdict(seen), "entries": [asdict(each) for each in page.entries]}
                with suppress(sqlite3.Error):
                    self._file.note(f"tag {tag}", content)
                return seen, page.entries, now_ms(), "Redis does not answer" if error else ""
        if kept is None:
            return None, [], 0, error
        entries = convert(kept.content["entries"], list[LedgerEntry])
        return convert(kept.content["state"], Inspection), entries, kept.at, error

    async def _who(self, tag: str, number: str) -> dict[str, Any] | None:
        """Return who reserved a number or a text, with the reservations before and after it. None without a number."""
        if not number:
            return None
        try:
            decoded = await self._ids.decode(tag, int(number) if _NUMBER.fullmatch(number) else number, timeout=WITHIN)
            if decoded.counter is None:
                return {"error": "the numbers of this tag have no counter, so no ledger entry has them"}
            part = decoded.part or tag
            found: Provenance = await self._ids.who(part, decoded.counter, timeout=WITHIN)
        except (StoreUnavailable, RedisUnavailable):
            return {"error": "Redis or the store did not answer in time"}
        except IssuerError as error:
            return {"error": said_by(error)}
        return {"part": part, "counter": decoded.counter, "found": found, "state": state(found), "error": ""}

    # ------------------------------------------------------------------ servers and history

    def servers(self) -> dict[str, Any]:
        """Return the findings of `doctor`, and the processes."""
        self._file.wish("doctor")
        fact = self._file.fact("doctor")
        return {
            "findings": None if fact is None else fact.content,
            "examined": None if fact is None else fact.at,
            "processes": self._chronicle().processes,
            "now": now_ms(),
        }

    def history(self, said: Mapping[str, str]) -> dict[str, Any]:
        """Return the events and the acts, newest first."""
        chronicle, tag = self._chronicle(), said.get("tag", "")
        return {
            "tag": tag,
            "happenings": [each for each in chronicle.happenings if not tag or tag in each.tags][:200],
            "acts": [each for each in chronicle.acts if not tag or each.tag == tag][:200],
        }


#: Spans of the chart of a tag, in ms.
SPANS: Final[Mapping[str, int]] = {"hour": 3_600_000, "day": DAY, "week": 7 * DAY, "quarter": 90 * DAY}

#: What a page says after an act.
DONE: Final = {
    "create": "The tag was created.",
    "configure": "The settings were changed.",
    "halt": "Reservations of the tag are stopped.",
    "recover": "The tag was recovered.",
    "delete": "The tag was deleted.",
}


def _done(said: Mapping[str, str]) -> str:
    return DONE.get(said.get("done", ""), "")


def _span(said: Mapping[str, str]) -> str:
    return said["span"] if said.get("span") in SPANS else "day"


def _page(said: Mapping[str, str]) -> int:
    text = said.get("page", "1")
    if not re.fullmatch("[1-9][0-9]{0,5}", text):
        raise InvalidArgument("must be a whole number, 1..999999", value=text, argument="page")
    return int(text)


def _ahead(seen: Inspection) -> tuple[str, str]:
    """Return the level, and who is ahead: the store or Redis."""
    redis, store = seen.redis, seen.store
    if redis is None:
        return "warn", "Redis was not read."
    top = max(filter(None, (redis.cur, redis.max, redis.next_max)), default=0)
    if not top:
        return "ok", "Redis has no numbers of the tag. The next call loads a segment."
    if top > store.max:
        return "bad", f"Redis is ahead of the store by {top - store.max:,}: recover the tag."
    if top == store.max:
        return "ok", "The store and Redis agree: all reserved numbers are in Redis, or were issued."
    return "ok", f"The store is ahead by {store.max - top:,}: processes hold these numbers, or they are a gap."


def _hour(seen: Inspection) -> outlook.Hour | None:
    if not seen.rate or seen.parts is not None:
        return None
    target = max(seen.store.target, 2 * seen.store.survive / seen.store.ahead)
    return outlook.next_hour(seen, seen.rate, target, seen.store.max, seen.limit)


def _settings(seen: Inspection) -> dict[str, object]:
    shown: dict[str, object] = {
        "order": seen.order,
        "step": "auto" if seen.store.step_mode == "auto" else seen.store.step,
        **{name: getattr(seen.store, name) for name in PACING if hasattr(seen.store, name)},
        "limit": "2^63-1" if seen.limit == HIGHEST else seen.limit,
        "lease": "auto" if seen.lease_mode == "auto" else "process" if seen.lease is None else seen.lease,
    }
    shown |= seen.scheme
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in shown.items()}
