"""How tags with schemes are made and changed, as steps that both drivers run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from issuer import gateway
from issuer.core import parts, recovery, requests, scheme_record
from issuer.core.record import known
from issuer.core.steps import Steps, ask, send
from issuer.core.supply.ownership import refuse_foreign
from issuer.errors import (
    InvalidArgument,
    LimitReached,
    SchemeError,
    StoreBehind,
    TagDiffers,
    TagExists,
    UnknownTag,
    brief,
)
from issuer.gateway.keys import check_found, check_tag, part_tag
from issuer.numbers import limits
from issuer.numbers.codec import shard_layout, strides
from issuer.numbers.given import changed, made
from issuer.persistence.errors import LimitHit, LimitTooLow, TagPresent, VersionMoved
from issuer.persistence.records import HIGHEST, Order, Tag
from issuer.persistence.scheme_json import frozen
from issuer.strategies.registry import check

#: What a tag's parts have in common with it.
_SHARED = frozenset(("step", "lease", "ahead"))

#: What only a counter has a use for, each with what it is where nothing is said.
_COUNTERS = {"step": None, "limit": HIGHEST, "start": None, "above": None, "order": "trend", "lease": None, "ahead": 1}

#: How often a change of a scheme is tried again when a reservation came in between.
ATTEMPTS = 100

#: The largest segment of a tag with periods: one of 2^40 would reach into the next one, which then counts as begun.
SEGMENT_MOST = 1 << 32

#: What makes a scheme have pieces.
_PIECES = {"stride", "offset", "scramble"}


def create(
    tag: str,
    given: Mapping[str, Any],
    *,
    keys: Mapping[str, bytes],
    exist_ok: bool = False,
    **settings: Any,
) -> Steps[Tag]:
    """Make a tag, and the tags of its shards; see Issuer.create. `given`: what makes its scheme.

    `settings`: its others, as `_create` takes them.
    """
    check_tag(tag)
    if not exist_ok:
        return (yield from _create(tag, given, keys=keys, **settings))
    found = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if found is None or found.deleted:
        try:
            return (yield from _create(tag, given, keys=keys, **settings))
        except (TagPresent, TagExists):  # another process was quicker
            found = yield from known(tag)
    differs = _differences(found, given, keys=keys, **settings)
    if differs:
        raise TagDiffers(tag, differs)
    return scheme_record.in_true_order(found)


def _differences(
    found: Tag, given: Mapping[str, Any], *, keys: Mapping[str, bytes], limit: int | str, **settings: Any
) -> dict[str, tuple[object, object]]:
    """Return what was asked for and what the tag has, by the name of each setting that differs.

    What wasn't said is not compared, but for what makes the numbers: a tag makes them as the caller expects, or not.
    Nor is where the counter begins, unless the tag hasn't come as far.
    """
    last = requests.whole(limits.number(limit), "limit", 1, HIGHEST)
    above = requests.above_of(found.tag, settings["start"], settings["above"], last)
    order = scheme_record.in_true_order(found).order
    scheme, _ = made(
        given,
        tag=found.tag,
        order=order,
        limit=last,
        above=above or 0,
        lease=settings["lease"],
        keys=keys,
        before=found.scheme,
    )
    said: dict[str, tuple[object, object]] = {
        "order": (settings["order"], order),
        "step": (None if settings["step"] == "auto" else settings["step"], found.step),
        "limit": (None if last == HIGHEST else last, scheme_record.last_value(found.scheme, found.limit)),
        "lease": (settings["lease"], found.lease),
        "ahead": (None if settings["ahead"] == 1 else settings["ahead"], found.ahead),
        "description": (settings["description"] or None, found.description),
    }
    differs = {name: (asked, has) for name, (asked, has) in said.items() if asked is not None and asked != has}
    if above is not None and above > found.max:
        differs["above"] = (above, found.max)
    wanted, has = frozen(scheme), found.scheme
    names = (wanted.keys() | has.keys()) - {"id", "limit"}
    made_otherwise = [name for name in sorted(names) if wanted.get(name) != has.get(name)]
    return differs | {name: (wanted.get(name), has.get(name)) for name in made_otherwise}


def _create(
    tag: str,
    given: Mapping[str, Any],
    *,
    keys: Mapping[str, bytes],
    limit: int | str,
    redis: bool,
    key_of: Callable[[str], str],
    **settings: Any,
) -> Steps[Tag]:
    """Make a tag. `key_of`: where a tag's hash is, if there is Redis."""
    last = requests.whole(limits.number(limit), "limit", 1, HIGHEST)
    strategy = given.get("strategy", scheme_record.SEGMENT)
    _check_counters(tag, strategy, {**settings, "limit": last})
    if strategy != scheme_record.SEGMENT:
        settings["order"] = "trend"
    restart = given.get("restart", "never")
    if restart != "never" and not redis:  # before its order, which is what it is because there is no Redis
        problem = "needs Redis, whose clock decides when a period ends, and none is set"
        raise SchemeError(problem, setting="restart", value=restart, tag=tag)
    order: Order = settings["order"] or ("strict" if redis else "trend")
    above = requests.above_of(tag, settings["start"], settings["above"], last) or 0
    # Only what has pieces can go on with those of a deleted tag: nobody else pays for a look.
    found = (yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))) if _PIECES & given.keys() else None
    scheme, counter_limit = made(
        given,
        tag=tag,
        order=order,
        limit=last,
        above=above,
        lease=settings["lease"],
        keys=keys,
        before=found.scheme if found is not None and found.deleted else None,
    )
    _check_limit(tag, scheme, last, counter_limit, first=above + 1)
    check(scheme_record.strategy(scheme), scheme.get("options", {}), tag)
    _check_segment(tag, scheme, settings["step"], settings["ahead"])
    shards = scheme.get("shards")
    if shards is not None and last != HIGHEST:
        raise SchemeError("shards end where their bits do: leave it out", setting="limit", value=limit, tag=tag)
    names = [] if shards is None else [part_tag(tag, str(shard)) for shard in range(1 << int(shards["shard_bits"]))]
    if redis:
        yield from refuse_foreign([(name, key_of(name)) for name in (tag, *names)])
    if shards is not None:
        yield from _shards(tag, names, scheme, redis=redis, settings=settings)
    try:
        return (yield from requests.create(tag, limit=counter_limit, scheme=scheme, redis=redis, **settings))
    except LimitHit as error:
        problem = "it was deleted, and goes on above its numbers, so give it a higher limit, or another name"
        raise LimitReached(tag, limit=last, value=_seen(scheme, error.max), advice=problem) from error


def _check_segment(tag: str, scheme: Mapping[str, Any], step: object, ahead: object) -> None:
    size = (step if isinstance(step, int) else 1) * (ahead if isinstance(ahead, int) else 1)
    if scheme.get("restart", "never") != "never" and size > SEGMENT_MOST:
        problem = f"step x ahead is at most {SEGMENT_MOST} with restart: a segment must lie within its period"
        raise InvalidArgument(problem, tag=tag, value=size)


def scheme_of_parts(tag: str, scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scheme of each part of a tag with this one: a shard counts plainly, a series as the tag would."""
    own = {} if "shards" in scheme else {name: value for name, value in scheme.items() if name != "keyed"}
    return {**own, scheme_record.PART_OF: tag}


def limit_of_parts(record: Tag) -> int:
    """Return the last counter of each part of the tag."""
    shards = record.scheme.get("shards")
    return record.limit if shards is None else shard_layout(shards).most("sequence")


def _shards(
    tag: str, names: Sequence[str], scheme: Mapping[str, Any], *, redis: bool, settings: Mapping[str, Any]
) -> Steps[None]:
    """Make a tag for each shard, before the tag that they are parts of: so that what was begun can be done again."""
    record = yield from ask(lambda store, timeout: store.get(tag, timeout=timeout))
    if record is not None and not record.deleted:
        raise TagExists(tag)
    there = {each.tag: each for each in (yield from ask(lambda store, timeout: store.tags(timeout=timeout)))}
    for name in names:  # all of them before the first one is made: else the rest would be left without a whole
        if name in there and not parts.is_part(there[name], tag):
            raise parts.stranger(there[name], tag)
    limit, own = shard_layout(scheme["shards"]).most("sequence"), scheme_of_parts(tag, scheme)
    for name in names:
        try:
            yield from requests.create(name, limit=limit, scheme=own, redis=redis, **settings)
        except TagPresent:
            if not parts.is_part(found := (yield from known(name)), tag):
                raise parts.stranger(found, tag) from None


def configure(
    tag: str, key: str | None, given: Mapping[str, Any], *, keys: Mapping[str, bytes], **settings: Any
) -> Steps[Tag]:
    """Change a tag; see Issuer.configure. `given`: what changes its scheme."""
    check_tag(tag)
    limit = settings.pop("limit")
    last = None if limit is None else limits.number(limit)
    if key is not None and (given or any(each is not None for each in (last, settings["start"], settings["above"]))):
        yield from refuse_foreign([(tag, key)])  # what follows changes the store, and then the hash
    before = yield from known(tag)
    yield from parts.check_whole(before)
    _check_skipping(before, settings)
    _check_counters(tag, scheme_record.strategy(before.scheme), {**settings, "limit": last})
    step, ahead = settings["step"], settings["ahead"]
    _check_segment(tag, before.scheme, step or before.step, ahead or before.ahead)
    said = {name: settings.pop(name) for name in ("start", "above")}
    change = _Change(tag, key, given, last, keys, **said)
    before, after = yield from change.made(before, settings)
    if key is not None and after.scheme_id != before.scheme_id:
        # Now rather than at the next reservation: what was loaded for other values is a gap.
        store_id = yield from recovery.identity()
        until = scheme_record.until(after)
        yield from recovery.floor(tag, key, 0, "keep", store_id, scheme=after.scheme_id, until=until)
    shared = {name: settings[name] for name in _SHARED}
    if any(value is not None for value in shared.values()):
        for part in (yield from parts.of(after)):
            with suppress(UnknownTag):  # deleted meanwhile
                yield from _share(part, limit_of_parts(after), {**dict.fromkeys(settings), "raise_to": None, **shared})
    return scheme_record.in_true_order(after)


@dataclass(frozen=True, slots=True)
class _Change:
    """What users say of a tag: `given` makes its scheme; the last value, and the first one or what lies below it."""

    tag: str
    key: str | None
    given: Mapping[str, Any]
    last: int | None
    keys: Mapping[str, bytes]
    start: int | None
    above: int | None

    def made(self, before: Tag, settings: Mapping[str, Any]) -> Steps[tuple[Tag, Tag]]:
        """Change the record, which was `before` when it was read, and return it as it was and as it is."""
        above = requests.above_of(self.tag, self.start, self.above, HIGHEST if self.last is None else self.last)
        for _ in range(ATTEMPTS):
            scheme, limit = None, None
            # Values, of which the store knows the counters only: by another stride they would be others.
            seen = before.version if "stride" in before.scheme else None
            if self.given or self.last is not None:
                scheme, limit = changed(before, self.given, limit=self.last, keys=self.keys)
                seen = before.version
                limit = self._limit(scheme, limit)
                if self.key is not None and scheme.get("id", "") != before.scheme_id:
                    yield from _check_witness(before, self.key, self.given)
            ways = before.scheme if scheme is None else scheme
            raise_to = above
            if above is not None and "stride" in ways:
                if above > scheme_record.last_value(ways, before.limit):
                    raise self._too_low(before, above)
                raise_to = strides(ways).highest(above)
            try:
                after = yield from requests.configure(
                    self.tag, self.key, limit=limit, raise_to=raise_to, scheme=scheme, seen=seen, **settings
                )
            except LimitTooLow as error:
                raise self._too_low(before, _seen(ways, error.max)) from error
            except VersionMoved:
                before = yield from known(self.tag)
            else:
                return before, after
        raise VersionMoved(self.tag)

    def _limit(self, scheme: Mapping[str, Any], counter: int | None) -> int | None:
        """Return the last counter, which can't be 0: where a stride begins above the limit the scheme gives none."""
        if self.last is not None and counter is not None:
            _check_limit(self.tag, scheme, self.last, counter, first=1)
        return None if counter is None else max(1, counter)

    def _too_low(self, record: Tag, reserved: int) -> InvalidArgument:
        """Return the error for a limit below what is reserved, or for a start above the limit that there is."""
        if self.last is not None:
            problem = f"limit {self.last} is below {reserved}, the highest number reserved"
            return InvalidArgument(problem, tag=self.tag, value=self.last)
        name, value = ("above", self.above) if self.start is None else ("start", self.start)
        limit = scheme_record.last_value(record.scheme, record.limit)
        problem = f"{name} is {value}, and the limit {limit}: raise that first"
        return InvalidArgument(problem, tag=self.tag, value=value)


def _check_limit(tag: str, scheme: Mapping[str, Any], limit: int, counter: int, *, first: int) -> None:
    """Refuse a limit below the first number; `counter`: the last one, `first`: the first one."""
    if "stride" in scheme and counter < first:
        problem = f"{limit} lies below the first number, {strides(scheme).value(first)}"
        raise SchemeError(problem, setting="limit", value=limit, tag=tag)


def _check_witness(record: Tag, key: str, given: Mapping[str, Any]) -> Steps[None]:
    """Refuse to make values otherwise if Redis has seen a later scheme than the store, which went back to before it.

    What the lost one has made of counters isn't known, so the new one could make it again: unless the caller says above
    which values it begins.
    """
    if given.get("stride_above") is not None or not isinstance(given.get("scramble", ""), str):
        return
    hash = yield from send(gateway.read_hash(key))
    found = hash.scheme or ""
    if scheme_record.turn(found) > scheme_record.turn(record.scheme_id):
        raise StoreBehind(record.tag, max=record.max, scheme=found)


def _share(part: str, limit: int, settings: Mapping[str, Any]) -> Steps[None]:
    """Change a part as its tag was changed, and give it the limit of all parts: older programs let it have its own."""
    try:
        yield from requests.configure(part, None, limit=limit, **settings)
    except LimitTooLow:  # by its own limit it has gone beyond
        yield from requests.configure(part, None, limit=None, **settings)


def _check_counters(tag: str, strategy: object, settings: Mapping[str, object]) -> None:
    """Refuse what only a counter has a use for, where a strategy does without one."""
    for name, nothing in _COUNTERS.items() if strategy != scheme_record.SEGMENT else ():
        value = settings.get(name)
        if value not in (None, nothing):
            raise SchemeError(
                f"strategy {strategy!r} excludes {brief(value)}: its numbers come of no counter, and rise within a "
                "process only",
                setting=name,
                value=value,
                tag=tag,
            )


def _check_skipping(record: Tag, settings: Mapping[str, Any]) -> None:
    """Refuse to skip numbers where they begin anew, or aren't the tag's. What makes its scheme, `changed` refuses."""
    if parts.has_parts(record):
        problem = "is each part's own: a keyed tag, or one with shards, is in parts"
    elif "restart" in record.scheme:
        problem = "can't be raised: numbers begin at 1 in each period"
    elif record.scheme.get("cycle"):
        problem = "can't be raised: numbers begin anew after the limit"
    else:
        return
    for name in ("start", "above"):
        if settings[name] is not None:
            raise SchemeError(problem, setting=name, value=settings[name], tag=record.tag)


def _seen(scheme: Mapping[str, Any], counter: int) -> int:
    """Return what users see of a counter, as far as it goes by strides: a scrambled one's bounds are the counter's."""
    return strides(scheme).value(counter) if "stride" in scheme else counter


def delete(tag: str, key_of: Callable[[str], str | None]) -> Steps[list[str]]:
    """Retire a tag, and its parts after it; return their names. `key_of`: where a tag's hash is, None without Redis.

    Of a tag that is deleted the parts are deleted that a delete before was kept from; then UnknownTag is raised.
    """
    record = yield from ask(lambda store, timeout: store.get(check_found(tag), timeout=timeout))
    if record is not None:
        yield from parts.check_whole(record)
    gone: UnknownTag | None = None
    try:
        yield from recovery.delete(tag, key_of(tag))
    except UnknownTag as error:
        gone = error
    names = [tag]
    for part in (yield from parts.of(record)) if record is not None else ():
        names.append(part)
        with suppress(UnknownTag):  # somebody else does the same
            yield from recovery.delete(part, key_of(part))
    if gone is not None:
        raise gone
    return names
