"""Create, change and delete tags, as steps (generators), which the blocking or asyncio driver runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from issuer.core import floor, parts, requests, scheme_record
from issuer.core.batch import TagBatch
from issuer.core.record import check_owner, identity, read_record, select
from issuer.core.steps import Steps, ask, pipeline, send
from issuer.errors import (
    InvalidArgument,
    IssuerError,
    LimitReached,
    SchemeError,
    StoreBehind,
    TagDiffers,
    TagExists,
    UnknownTag,
    brief,
)
from issuer.gateway import tag_scripts
from issuer.gateway.keys import PART, check_found, check_tag, part_tag, redis_key
from issuer.numbers import limits
from issuer.numbers.codec import shard_layout, strides
from issuer.numbers.given import changed, made
from issuer.operations.config import IssuerConfig
from issuer.operations.tag_options import TagOptions
from issuer.strategies.registry import check, settled
from issuer_persistence.errors import LimitHit, LimitTooLow, TagPresent, VersionMoved
from issuer_persistence.records import HIGHEST, PACING, Order, Tag, TagSettings
from issuer_persistence.scheme_json import PLAIN, frozen

#: Settings that are only for tags with a counter, with their defaults.
_COUNTERS = {"step": None, "limit": HIGHEST, "start": None, "above": None, "order": "trend", "lease": None,
             **{name: getattr(TagSettings(), name) for name in PACING}}  # fmt: skip

#: Maximum number of attempts to change a scheme. An attempt fails if a reservation changes the record after it was
#: read.
ATTEMPTS = 100

#: Largest segment of a tag with periods. A segment of 2^40 numbers would reach into the next period, and so begin that
#: period.
SEGMENT_MOST = 1 << 32

#: Settings that can be changed later. The scheme then contains several versions of these settings, one per range of
#: counter values.
_PIECES = {"stride", "offset", "scramble"}


@contextmanager
def named(tag: str) -> Iterator[None]:
    """If the block raises an error without a tag, set the error's tag."""
    try:
        yield
    except IssuerError as error:
        error.tag = error.tag or tag
        raise


def create_many(
    wanted: Mapping[str, TagOptions],
    config: IssuerConfig,
    founded: Callable[[Tag], Steps[None]],
    *,
    exist_ok: bool = False,
) -> Steps[list[Tag]]:
    """Create tags and the tags of their shards: all or none, see Issuer.create_many.

    `founded` informs the strategy of a new tag.
    """
    asked: dict[str, TagOptions] = {}
    there: dict[str, Tag] = {}
    strange: list[str] = []
    owned = {tag for tag, options in wanted.items() if _uncounted(options)}
    for tag in wanted:
        with named(tag):
            check_tag(tag)
    known = (yield from _records(wanted if exist_ok else owned)) if exist_ok or owned else {}
    for tag, options in wanted.items():
        with named(tag):
            own, found = tag in owned, known.get(tag)
            if exist_ok and found is not None and not found.deleted:
                there[tag] = found
            asked[tag] = _settled(tag, options, config, there.get(tag)) if own else options
            if own and found is None:
                strange.append(tag)
            if tag in there and (differs := _differences(there[tag], asked[tag], keys=config.settings.keys)):
                raise TagDiffers(tag, differs)
    try:
        made = yield from _create({tag: options for tag, options in asked.items() if tag not in there}, config)
    except TagExists:
        if exist_ok:  # another process was faster
            return (yield from create_many(wanted, config, founded, exist_ok=True))
        raise
    for tag in strange:
        yield from founded(made[tag])
    return [made[tag] if tag in made else scheme_record.in_true_order(there[tag]) for tag in wanted]


def compare(tag: str, asked: TagOptions, config: IssuerConfig) -> Steps[Mapping[str, tuple[object, object]] | None]:
    """Return the settings that differ from those of the existing tag: what was requested, and what the tag has.

    None means that there is no such tag. Nothing is changed. Invalid settings raise the errors of `create_many`.
    """
    record = yield from _record(check_tag(tag))
    there = None if record is None or record.deleted else record
    if _uncounted(asked):
        asked = _settled(tag, asked, config, there)
    if there is None:
        with named(tag):
            settings = yield from _settings(tag, asked, config)
        yield from _refuse_foreign(settings, config)
        return None
    said = {"step": asked.step, **asked.others(tag, None)}
    has = {name: getattr(there, name) for name in said}
    if there.step_mode == "auto":
        has["step"] = "auto"
    differs = {name: (want, has[name]) for name, want in said.items() if want is not None and want != has[name]}
    return _differences(there, asked, keys=config.settings.keys) | differs


def _record(tag: str) -> Steps[Tag | None]:
    return (yield from ask(lambda store, timeout: store.get(tag, timeout=timeout)))


def _uncounted(asked: TagOptions) -> bool:
    """Whether a strategy without a counter was requested."""
    return bool(asked.given.get("strategy", scheme_record.SEGMENT) != scheme_record.SEGMENT)


def _records(tags: Iterable[str]) -> Steps[Mapping[str, Tag | None]]:
    """Return the record of each of these tags. They are read together."""
    batch = TagBatch({tag: _record(tag) for tag in tags})
    while batch.pending:
        yield from batch.go_on()
    for error in batch.errors.values():
        raise error
    return batch.results


def _settled(tag: str, asked: TagOptions, config: IssuerConfig, there: Tag | None) -> TagOptions:
    """Add the strategy's own values to the options, such as the default epoch. `there` is the existing tag, or None."""
    said = asked.given.get("options", {})
    if not isinstance(said, Mapping):
        return asked
    try:
        options = {**settled(asked.given["strategy"], said, config.instance, redis=config.redis is not None)}
    except IssuerError as error:
        error.tag = error.tag or tag
        raise
    if there is not None:
        # If an option is not given, use the existing tag's value. This process might choose a different value.
        has = there.scheme.get("options", {})
        options |= {name: has[name] for name in options.keys() & has.keys() if name not in said}
    return replace(asked, given={**asked.given, "options": options})


def _differences(found: Tag, asked: TagOptions, *, keys: Mapping[str, bytes]) -> dict[str, tuple[object, object]]:
    """Compare the requested settings with those of an existing tag. Return both values of each setting that differs.

    Only settings that determine the numbers are compared: scheme and strategy always, order and limit if they were
    given, and the start if the tag has not passed it. The other settings are only checked for validity: operators
    change them while programs run, and a restart of the programs must still work.
    """
    last = HIGHEST if asked.limit in (None, HIGHEST) else limits.number(asked.limit)
    above = requests.above_of(found.tag, asked.start, asked.above, last)
    order = scheme_record.in_true_order(found).order
    replace(asked, order=order).settings(found.tag, limit=last, redis=True)
    scheme, _ = made(
        asked.given,
        tag=found.tag,
        order=order,
        limit=last,
        above=above or 0,
        lease=asked.lease,
        keys=keys,
        before=found.scheme,
    )
    said: dict[str, tuple[object, object]] = {
        "order": (asked.order, order),
        "limit": (None if last == HIGHEST else last, scheme_record.last_value(found.scheme, found.limit)),
    }
    differs = {name: (want, has) for name, (want, has) in said.items() if want is not None and want != has}
    if above is not None and above > found.max:
        differs["above"] = (above, found.max)
    wanted, has = frozen(scheme), found.scheme
    names = (wanted.keys() | has.keys()) - {"id", "limit"}
    made_otherwise = [name for name in sorted(names) if wanted.get(name) != has.get(name)]
    return differs | {name: (wanted.get(name), has.get(name)) for name in made_otherwise}


def _create(new: Mapping[str, TagOptions], config: IssuerConfig) -> Steps[dict[str, Tag]]:
    """Create the tags and the tags of their shards. Return the records of all of them, by name.

    The shards are before their tag, so that a call that was interrupted can be repeated.
    """
    settings: dict[str, TagSettings] = {}
    for tag, asked in new.items():
        with named(tag):
            own = yield from _settings(tag, asked, config)
        if same := own.keys() & settings.keys():
            raise InvalidArgument(f"tag {min(same)!r} would be a tag and a part of another tag", tag=tag, value=tag)
        settings |= own
    if not settings:
        return {}
    yield from _refuse_foreign(settings, config)
    try:
        made = yield from ask(lambda store, timeout: store.create_many(settings, timeout=timeout))
    except TagPresent as error:
        raise TagExists(error.tag if error.tag in new else error.tag.rpartition(PART)[0]) from error
    except LimitHit as error:
        scheme = settings[error.tag].scheme
        last = scheme_record.last_value(scheme, settings[error.tag].limit)
        problem = "it was deleted before and continues above its old numbers: use a higher limit, or another name"
        raise LimitReached(error.tag, limit=last, value=_seen(scheme, error.max), advice=problem) from error
    return {each.tag: each for each in made}


def _refuse_foreign(tags: Iterable[str], config: IssuerConfig) -> Steps[None]:
    """Raise ForeignHash if the hash of one of the tags belongs to another store. Changes nothing.

    The hashes are read together. If Redis is unavailable, the check is left to the first draw.
    """
    if config.redis is None:
        return
    keys = {tag: redis_key(config.settings.prefix, tag) for tag in tags}
    try:
        hashes = yield from pipeline([tag_scripts.read_hash(key) for key in keys.values()])
    except IssuerError:
        return
    there = {
        tag: hash
        for tag, hash in zip(keys, hashes, strict=True)
        if not isinstance(hash, IssuerError) and hash.store is not None
    }
    if there:
        store_id = yield from identity()
        for tag, hash in there.items():
            check_owner(tag, keys[tag], hash, store_id)


def _settings(tag: str, asked: TagOptions, config: IssuerConfig) -> Steps[dict[str, TagSettings]]:
    """Check the options of a new tag. Return the settings of the tag and of its shards, by name."""
    redis = config.redis is not None
    last = HIGHEST if asked.limit in (None, HIGHEST) else limits.number(asked.limit)
    scheme: Mapping[str, Any] = PLAIN
    limit = last
    if asked.given:  # otherwise the tag has no scheme: the numbers are the counter values
        asked, scheme, limit = yield from _scheme(tag, asked, last, config)
    own = asked.settings(tag, limit=limit, redis=redis, scheme=scheme)
    shards = (yield from _shards(tag, scheme, asked, redis=redis)) if "shards" in scheme else {}
    return {**shards, tag: own}


def _scheme(
    tag: str, asked: TagOptions, last: int, config: IssuerConfig
) -> Steps[tuple[TagOptions, Mapping[str, Any], int]]:
    """Check the options of a tag with a scheme. Return the options, the scheme and the last counter value."""
    given, redis = asked.given, config.redis is not None
    strategy = given.get("strategy", scheme_record.SEGMENT)
    _check_counters(tag, strategy, asked, last)
    if strategy != scheme_record.SEGMENT:
        asked = replace(asked, order="trend")
    restart = given.get("restart", "never")
    if restart != "never" and not redis:  # checked first, because the default order depends on Redis, too
        problem = "needs Redis, whose clock decides when a period ends, but no Redis is configured: set its URL"
        raise SchemeError(problem, setting="restart", value=restart, tag=tag)
    order: Order = asked.order or ("strict" if redis else "trend")
    above = requests.above_of(tag, asked.start, asked.above, last) or 0
    # A stride or scrambling must continue the one of a deleted tag with this name. So the deleted tag's record is read.
    found = (yield from _record(tag)) if _PIECES & given.keys() else None
    scheme, limit = made(
        given,
        tag=tag,
        order=order,
        limit=last,
        above=above,
        lease=asked.lease,
        keys=config.settings.keys,
        before=found.scheme if found is not None and found.deleted else None,
    )
    _check_limit(tag, scheme, last, limit, first=above + 1)
    check(scheme_record.strategy(scheme), scheme.get("options", {}), tag)
    _check_segment(tag, scheme, (asked.step, asked.max_step), asked.ahead)
    if "shards" in scheme and last != HIGHEST:
        problem = "cannot be set for a tag with shards, because the number of bits is its limit: omit it"
        raise SchemeError(problem, setting="limit", value=asked.limit, tag=tag)
    return asked, scheme, limit


def _check_segment(tag: str, scheme: Mapping[str, Any], steps: Sequence[object], ahead: object) -> None:
    step = max((each for each in steps if isinstance(each, int)), default=1)
    size = step * (ahead if isinstance(ahead, int) else 1)
    if scheme.get("restart", "never") != "never" and size > SEGMENT_MOST:
        problem = f"step x ahead is at most {SEGMENT_MOST} with restart: a segment must lie within its period"
        raise InvalidArgument(problem, tag=tag, value=size)


def scheme_of_parts(tag: str, scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scheme for the parts of a tag. Shards have plain counters, and series have the scheme of the tag."""
    own = {} if "shards" in scheme else {name: value for name, value in scheme.items() if name != "keyed"}
    return {**own, scheme_record.PART_OF: tag}


def limit_of_parts(record: Tag) -> int:
    """Return the last counter value that each shard or series of the tag may use."""
    shards = record.scheme.get("shards")
    return record.limit if shards is None else shard_layout(shards).most("sequence")


def _shards(tag: str, scheme: Mapping[str, Any], asked: TagOptions, *, redis: bool) -> Steps[dict[str, TagSettings]]:
    """Return the settings of the tags of all shards that do not exist, by name."""
    record = yield from _record(tag)
    if record is not None and not record.deleted:
        raise TagExists(tag)
    names = [part_tag(tag, str(shard)) for shard in range(1 << int(scheme["shards"]["shard_bits"]))]
    there = {each.tag: each for each in (yield from select(prefix=f"{tag}{PART}"))}
    for name in names:
        if name in there and not parts.is_part(there[name], tag):
            raise parts.not_a_part(there[name], tag)
    limit, own = shard_layout(scheme["shards"]).most("sequence"), scheme_of_parts(tag, scheme)
    return {name: asked.settings(name, limit=limit, redis=redis, scheme=own) for name in names if name not in there}


def configure(tag: str, asked: TagOptions, config: IssuerConfig) -> Steps[Tag]:
    """Change settings of a tag, see Issuer.configure."""
    check_tag(tag)
    key = config.hash_key(tag)
    last = None if asked.limit is None else limits.number(asked.limit)
    moves = (last, asked.start, asked.above)
    if asked.given or any(each is not None for each in moves):
        yield from _refuse_foreign((tag,), config)  # check the hash before the store is changed
    before = yield from read_record(tag)
    yield from parts.check_whole(before)
    _check_skipping(before, asked)
    _check_counters(tag, scheme_record.strategy(before.scheme), asked, last)
    steps = (asked.step or before.step, asked.max_step or before.max_step)
    _check_segment(tag, before.scheme, steps, asked.ahead or before.ahead)
    before, after = yield from _Change(tag, key, asked, last, config.settings.keys).made(before)
    if key is not None and after.scheme_id != before.scheme_id:
        # Apply the new scheme now, and not at the next reservation. Redis then skips the loaded numbers.
        store_id = yield from identity()
        until = scheme_record.until(after)
        yield from floor.floor(tag, key, 0, "keep", store_id, scheme=after.scheme_id, until=until)
    # Apply these settings to the shards or series of the tag, too.
    shared = TagOptions(**{name: getattr(asked, name) for name in ("step", "lease", *PACING)})
    if shared != TagOptions():
        # Both bounds: a part that an older program has created has other ones.
        shared = replace(shared, min_step=after.min_step, max_step=after.max_step)
        for part in (yield from parts.of(after)):
            with suppress(UnknownTag):  # deleted in the meantime
                yield from _share(part, limit_of_parts(after), shared)
    return scheme_record.in_true_order(after)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a tag's settings. `last` is the new limit as users see it, `keys` are the secret keys by name."""

    tag: str
    key: str | None
    asked: TagOptions
    last: int | None
    keys: Mapping[str, bytes]

    def made(self, before: Tag) -> Steps[tuple[Tag, Tag]]:
        """Make the change. `before` is the record as it was read. Return the records before and after the change."""
        asked, given = self.asked, self.asked.given
        above = requests.above_of(self.tag, asked.start, asked.above, HIGHEST if self.last is None else self.last)
        for _ in range(ATTEMPTS):
            scheme, limit = None, None
            # With a stride, the limit is given as a number, but stored as a counter value. The scheme converts it, so
            # the record must not change in the meantime.
            seen = before.version if "stride" in before.scheme else None
            if given or self.last is not None:
                scheme, limit = changed(before, given, limit=self.last, keys=self.keys)
                seen = before.version
                limit = self._limit(scheme, limit)
                if self.key is not None and scheme.get("id", "") != before.scheme_id:
                    yield from _check_witness(before, self.key, given)
            ways = before.scheme if scheme is None else scheme
            raise_to = above
            if above is not None and "stride" in ways:
                if above > scheme_record.last_value(ways, before.limit):
                    raise self._too_low(before, above)
                raise_to = strides(ways).highest(above)
            changes = asked.changes(
                self.tag, limit=limit, min_step=before.min_step, raise_to=raise_to, scheme=scheme, seen=seen
            )
            try:
                after = yield from floor.configure(self.tag, self.key, changes)
            except LimitTooLow as error:
                raise self._too_low(before, _seen(ways, error.max)) from error
            except VersionMoved:
                before = yield from read_record(self.tag)
            else:
                return before, after
        raise VersionMoved(self.tag)

    def _limit(self, scheme: Mapping[str, Any], counter: int | None) -> int | None:
        """Return the last counter value, at least 1. If no number of the stride is below the limit, raise an error."""
        if self.last is not None and counter is not None:
            _check_limit(self.tag, scheme, self.last, counter, first=1)
        return None if counter is None else max(1, counter)

    def _too_low(self, record: Tag, reserved: int) -> InvalidArgument:
        """Return the error for a limit that is below the reserved numbers, or for a start that is above the limit."""
        if self.last is not None:
            problem = f"limit {self.last} is below {reserved}, the highest number reserved"
            return InvalidArgument(problem, tag=self.tag, value=self.last)
        name, value = ("above", self.asked.above) if self.asked.start is None else ("start", self.asked.start)
        limit = scheme_record.last_value(record.scheme, record.limit)
        problem = f"{name} {value} is above the limit {limit}: raise the limit first"
        return InvalidArgument(problem, tag=self.tag, value=value)


def _check_limit(tag: str, scheme: Mapping[str, Any], limit: int, counter: int, *, first: int) -> None:
    """If a tag has a stride, check that its last counter value, `counter`, is not below its first one, `first`."""
    if "stride" in scheme and counter < first:
        problem = f"{limit} is below the first number, {strides(scheme).value(first)}"
        raise SchemeError(problem, setting="limit", value=limit, tag=tag)


def _check_witness(record: Tag, key: str, given: Mapping[str, Any]) -> Steps[None]:
    """If Redis has a newer scheme than the store, the store has lost changes: reject a further new scheme.

    The values of the lost scheme are unknown. So the new scheme could repeat these values, unless the caller sets the
    first value of the new scheme (`stride_above`).
    """
    if given.get("stride_above") is not None or not isinstance(given.get("scramble", ""), str):
        return
    hash = yield from send(tag_scripts.read_hash(key))
    found = hash.scheme or ""
    if scheme_record.turn(found) > scheme_record.turn(record.scheme_id):
        raise StoreBehind(record.tag, max=record.max, scheme=found)


def _share(part: str, limit: int, shared: TagOptions) -> Steps[None]:
    """Apply a tag's changes to a shard or series, and set its limit again: older versions allowed a different limit."""
    try:
        yield from floor.configure(part, None, shared.changes(part, limit=limit))
    except LimitTooLow:  # the shard or series has already passed this limit
        yield from floor.configure(part, None, shared.changes(part, limit=None))


def _check_counters(tag: str, strategy: object, asked: TagOptions, last: int | None) -> None:
    """If the strategy has no counter, reject settings that need a counter."""
    for name, nothing in _COUNTERS.items() if strategy != scheme_record.SEGMENT else ():
        value = last if name == "limit" else getattr(asked, name)
        if value not in (None, nothing):
            raise SchemeError(
                f"strategy {strategy!r} excludes {brief(value)}: it has no counter, and its numbers increase only "
                "within a process",
                setting=name,
                value=value,
                tag=tag,
            )


def _check_skipping(record: Tag, asked: TagOptions) -> None:
    """Reject `start` and `above` for tags with shards, series or periods. `changed` checks the scheme's settings."""
    if parts.has_parts(record):
        problem = "cannot be set for a tag with shards or a keyed tag, because each part has its own"
    elif "restart" in record.scheme:
        problem = "cannot be raised: numbers begin at 1 in each period"
    else:
        return
    for name, value in (("start", asked.start), ("above", asked.above)):
        if value is not None:
            raise SchemeError(problem, setting=name, value=value, tag=record.tag)


def _seen(scheme: Mapping[str, Any], counter: int) -> int:
    """Return the number for a counter value, by the stride only: limits are not scrambled."""
    return strides(scheme).value(counter) if "stride" in scheme else counter


def delete(tag: str, config: IssuerConfig) -> Steps[list[str]]:
    """Delete a tag, then its shards or series, and return all names.

    If the tag is already deleted, delete what an interrupted call has left, and raise UnknownTag.
    """
    record = yield from ask(lambda store, timeout: store.get(check_found(tag), timeout=timeout))
    if record is not None:
        yield from parts.check_whole(record)
    gone: UnknownTag | None = None
    try:
        yield from floor.delete(tag, config.hash_key(tag))
    except UnknownTag as error:
        gone = error
    names = [tag]
    for part in (yield from parts.of(record)) if record is not None else ():
        names.append(part)
        with suppress(UnknownTag):  # another process has deleted the part
            yield from floor.delete(part, config.hash_key(part))
    if gone is not None:
        raise gone
    return names
