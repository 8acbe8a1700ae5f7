"""Creates, changes and deletes tags. Calls are steps (generators), which the blocking or asyncio driver runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from issuer.core import floor, parts, scheme_record
from issuer.core.batch import TagBatch
from issuer.core.error_mapping import named
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
from issuer.forks import no_fork
from issuer.gateway import tag_scripts
from issuer.gateway.keys import PART, check_found, check_tag, part_tag, redis_key
from issuer.numbers import limits
from issuer.operations.config import IssuerConfig
from issuer.operations.tag_options import TagOptions
from issuer_persistence.errors import LimitHit, LimitTooLow, TagPresent, VersionMoved
from issuer_persistence.reads import ReadTag
from issuer_persistence.records import HIGHEST, PACING, Order, Tag, TagSettings
from issuer_persistence.scheme_json import PLAIN, frozen

if TYPE_CHECKING:
    from issuer.numbers.stride import Strides

#: Settings that only tags with a counter can have, with the value that means "not set".
_COUNTERS = {"step": None, "limit": HIGHEST, "start": None, "above": None, "order": "trend", "lease": None,
             **{name: getattr(TagSettings(), name) for name in PACING}}  # fmt: skip

#: Maximum number of attempts to change a scheme. An attempt fails if a reservation changes the tag's record after the
#: attempt has read this record.
ATTEMPTS = 100

#: Largest segment of a tag with periods. Each period has 2^40 counter values. So a segment of 2^40 numbers would reach
#: into the next period, and so begin that period.
SEGMENT_MOST = 1 << 32

#: Settings of a scheme that can be changed later. After a change, the scheme contains both the old and the new values,
#: each for a range of counter values.
_PIECES = {"stride", "offset", "scramble"}


def create_many(
    wanted: Mapping[str, TagOptions],
    config: IssuerConfig,
    founded: Callable[[Tag], Steps[None]],
    *,
    exist_ok: bool = False,
) -> Steps[tuple[list[Tag], list[Tag]]]:
    """Create tags and the tags of their shards: all or none, see Issuer.create_many.

    Return the records of all tags, and those of the new ones. `founded` is called for each new tag with a strategy that
    has no counter, if no earlier, deleted tag had the same name.
    """
    asked: dict[str, TagOptions] = {}
    there: dict[str, Tag] = {}
    strange: list[str] = []
    owned = {tag for tag, options in wanted.items() if _uncounted(options)}
    for tag in wanted:
        with named(tag):
            check_tag(tag)
    known = (yield from records(wanted if exist_ok else owned)) if exist_ok or owned else {}
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
        if exist_ok:  # another process has created one of the tags: compare it, too
            return (yield from create_many(wanted, config, founded, exist_ok=True))
        raise
    for tag in strange:
        yield from founded(made[tag])
    every = {tag: made[tag] if tag in made else scheme_record.in_true_order(there[tag]) for tag in wanted}
    return list(every.values()), [record for tag, record in every.items() if tag in made]


def compare(tag: str, asked: TagOptions, config: IssuerConfig) -> Steps[Mapping[str, tuple[object, object]] | None]:
    """Return the requested value and the tag's value of each setting that differs, or None if there is no such tag.

    Nothing is changed. Invalid settings raise the errors of `create_many`.
    """
    record = yield from ask(ReadTag(check_tag(tag)))
    there = None if record is None or record.deleted else record
    if _uncounted(asked):
        asked = _settled(tag, asked, config, there)
    if there is None:
        with named(tag):
            settings = yield from _settings(tag, asked, config)
        yield from _refuse_foreign(settings, config)
        return None
    said = {"step": asked.get("step"), "lease": asked.get("lease"), **asked.others()}
    has = {name: getattr(there, name) for name in said}
    if there.step_mode == "auto":
        has["step"] = "auto"
    if there.lease_mode == "auto" or has["lease"] is None:
        has["lease"] = "auto" if there.lease_mode == "auto" else "process"
    differs = {name: (want, has[name]) for name, want in said.items() if want is not None and want != has[name]}
    return _differences(there, asked, keys=config.settings.keys) | differs


def _uncounted(asked: TagOptions) -> bool:
    return bool(asked.given.get("strategy", scheme_record.SEGMENT) != scheme_record.SEGMENT)


def records(tags: Iterable[str]) -> Steps[Mapping[str, Tag | None]]:
    """Return the record of each of these tags, or None for an unknown tag. All records are read together."""
    batch = TagBatch({tag: ask(ReadTag(tag)) for tag in tags})
    while batch.pending:
        yield from batch.go_on()
    for error in batch.errors.values():
        raise error
    return batch.results


def _settled(tag: str, asked: TagOptions, config: IssuerConfig, there: Tag | None) -> TagOptions:
    """Add the values that the strategy chooses, such as the default epoch. `there`: the existing tag, or None."""
    with no_fork():
        from issuer.strategies.registry import settled

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
    """Compare requested settings with an existing tag. Return the requested and the tag's value of each difference.

    Only settings that determine the numbers are compared. Scheme and strategy are always compared, order and limit if
    they were given, the start if it is above the tag's `max`. Other settings must only be valid: operators change them
    while programs run, and a program that restarts with its old values must still work.
    """
    with no_fork():
        from issuer.numbers.given import made

    last = HIGHEST if asked.get("limit") in (None, HIGHEST) else limits.number(asked.get("limit"))
    above = asked.above(found.tag, last)
    order = scheme_record.in_true_order(found).order
    asked.but(order=order).settings(found.tag, limit=last, redis=True)
    scheme, _ = made(
        asked.given,
        tag=found.tag,
        order=order,
        limit=last,
        above=above or 0,
        lease=asked.get("lease"),
        keys=keys,
        before=found.scheme,
    )
    said: dict[str, tuple[object, object]] = {
        "order": (asked.get("order"), order),
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
    """Create the tags and the tags of their shards. Return the records of all these tags, by name.

    The shards are created before their tag. So after an interrupted call the tag is missing, and can be created again.
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
    """Raise ForeignHash if the Redis hash of one of the tags belongs to another store. Nothing is changed.

    All hashes are read together. If Redis is unavailable, nothing is raised: the first draw makes this check.
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
    """Check the options of a new tag. Return the settings of the tag and of its shards, by name of the tag."""
    redis = config.redis is not None
    last = HIGHEST if asked.get("limit") in (None, HIGHEST) else limits.number(asked.get("limit"))
    scheme: Mapping[str, Any] = PLAIN
    limit = last
    if asked.given:  # a tag without such options has no scheme, and its numbers are the counter values
        asked, scheme, limit = yield from _scheme(tag, asked, last, config)
    own = asked.settings(tag, limit=limit, redis=redis, scheme=scheme)
    shards = (yield from _shards(tag, scheme, asked, redis=redis)) if "shards" in scheme else {}
    return {**shards, tag: own}


def _scheme(
    tag: str, asked: TagOptions, last: int, config: IssuerConfig
) -> Steps[tuple[TagOptions, Mapping[str, Any], int]]:
    """Check the options of a tag with a scheme. Return the options, the scheme and the last counter value."""
    with no_fork():
        from issuer.numbers.given import made
        from issuer.strategies.registry import check

    given, redis = asked.given, config.redis is not None
    strategy = given.get("strategy", scheme_record.SEGMENT)
    _check_counters(tag, strategy, asked, last)
    if strategy != scheme_record.SEGMENT:
        asked = asked.but(order="trend")
    restart = given.get("restart", "never")
    if restart != "never" and not redis:  # first: without Redis, `made` would only reject the order
        problem = "needs Redis, whose clock decides when a period ends, but no Redis is configured: set its URL"
        raise SchemeError(problem, setting="restart", value=restart, tag=tag)
    order: Order = asked.get("order") or ("strict" if redis else "trend")
    above = asked.above(tag, last) or 0
    # If a deleted tag had this name, the new stride or scrambling must continue the old one. So read the old record.
    found = (yield from ask(ReadTag(tag))) if _PIECES & given.keys() else None
    scheme, limit = made(
        given,
        tag=tag,
        order=order,
        limit=last,
        above=above,
        lease=asked.get("lease"),
        keys=config.settings.keys,
        before=found.scheme if found is not None and found.deleted else None,
    )
    _check_limit(tag, scheme, last, limit, first=above + 1)
    check(scheme_record.strategy(scheme), scheme.get("options", {}), tag)
    _check_bits(tag, scheme, last)
    _check_segment(tag, scheme, (asked.get("step"), asked.get("max_step")), asked.get("ahead"))
    if "shards" in scheme and last != HIGHEST:
        problem = "cannot be set for a tag with shards, because the number of bits is its limit: omit it"
        raise SchemeError(problem, setting="limit", value=asked.get("limit"), tag=tag)
    return asked, scheme, limit


def _check_segment(tag: str, scheme: Mapping[str, Any], steps: Sequence[object], ahead: object) -> None:
    step = max((each for each in steps if isinstance(each, int)), default=1)
    size = step * (ahead if isinstance(ahead, int) else 1)
    if scheme.get("restart", "never") != "never" and size > SEGMENT_MOST:
        problem = f"step x ahead is at most {SEGMENT_MOST} with restart: a segment must lie within its period"
        raise InvalidArgument(problem, tag=tag, value=size)


def scheme_of_parts(tag: str, scheme: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scheme for the parts of a tag. Shards have plain counters. Series have the scheme of the tag."""
    own = {} if "shards" in scheme else {name: value for name, value in scheme.items() if name != "keyed"}
    return {**own, scheme_record.PART_OF: tag}


def limit_of_parts(record: Tag) -> int:
    """Return the last counter value that each shard or series of the tag may use."""
    return _last_in_shards(record.scheme) if "shards" in record.scheme else record.limit


def _last_in_shards(scheme: Mapping[str, Any]) -> int:
    with no_fork():
        from issuer.numbers.sharding import ShardLayout

    return ShardLayout(scheme["shards"]).most["sequence"]


def _shards(tag: str, scheme: Mapping[str, Any], asked: TagOptions, *, redis: bool) -> Steps[dict[str, TagSettings]]:
    """Return the settings of the shards of a new tag, by name. Shards that exist in the store are left out."""
    record = yield from ask(ReadTag(tag))
    if record is not None and not record.deleted:
        raise TagExists(tag)
    names = [part_tag(tag, str(shard)) for shard in range(1 << int(scheme["shards"]["shard_bits"]))]
    there = {each.tag: each for each in (yield from select(prefix=f"{tag}{PART}"))}
    for name in names:
        if name in there and not parts.is_part(there[name], tag):
            raise parts.not_a_part(there[name], tag)
    limit, own = _last_in_shards(scheme), scheme_of_parts(tag, scheme)
    return {name: asked.settings(name, limit=limit, redis=redis, scheme=own) for name in names if name not in there}


def configure(tag: str, asked: TagOptions, config: IssuerConfig) -> Steps[tuple[Tag, Tag]]:
    """Change settings of a tag, see Issuer.configure. Return the records before and after the change."""
    check_tag(tag)
    key = config.hash_key(tag)
    last = None if asked.get("limit") is None else limits.number(asked.get("limit"))
    moves = (last, asked.get("start"), asked.get("above"))
    if asked.given or any(each is not None for each in moves):
        yield from _refuse_foreign((tag,), config)  # check the hash before the store is changed
    before = yield from read_record(tag)
    yield from parts.check_whole(before)
    _check_skipping(before, asked)
    _check_counters(tag, scheme_record.strategy(before.scheme), asked, last)
    _check_bits(tag, before.scheme, last)
    steps = (asked.get("step") or before.step, asked.get("max_step") or before.max_step)
    _check_segment(tag, before.scheme, steps, asked.get("ahead") or before.ahead)
    before, after = yield from _Change(tag, key, asked, last, config.settings.keys).made(before)
    if key is not None and after.scheme_id != before.scheme_id:
        # Apply the new scheme now, and not at the next reservation. Redis then skips the loaded numbers.
        store_id = yield from identity()
        until = scheme_record.until(after)
        yield from floor.floor(tag, key, 0, "keep", store_id, scheme=after.scheme_id, until=until)
    # Apply the settings that shards and series share with their tag to these parts, too.
    shared = TagOptions.of({name: asked.get(name) for name in ("step", "lease", *PACING)})
    if shared.own:
        # Set both bounds of the step, because a part that an older program has created has other bounds.
        shared = shared.but(min_step=after.min_step, max_step=after.max_step)
        for part in (yield from parts.of(after)):
            with suppress(UnknownTag):  # another process has deleted the part
                yield from _share(part, limit_of_parts(after), shared)
    return before, scheme_record.in_true_order(after)


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of a tag's settings.

    `key`: key of the tag's Redis hash. `last`: new limit, as users see it. `keys`: secret keys by name.
    """

    tag: str
    key: str | None
    asked: TagOptions
    last: int | None
    keys: Mapping[str, bytes]

    def made(self, before: Tag) -> Steps[tuple[Tag, Tag]]:
        """Make the change. `before`: the record that was read. Return the records before and after the change."""
        asked, given = self.asked, self.asked.given
        above = asked.above(self.tag, HIGHEST if self.last is None else self.last)
        for _ in range(ATTEMPTS):
            scheme, limit = None, None
            # The limit is given as a number for users. With a stride, the scheme converts it to a counter value. If
            # another process changes the scheme in between, this value is wrong. With `seen`, the store rejects it.
            seen = before.version if "stride" in before.scheme else None
            if given or self.last is not None:
                with no_fork():
                    from issuer.numbers.given import changed

                scheme, limit = changed(before, given, limit=self.last, above=above, keys=self.keys)
                seen = before.version
                limit = self._limit(scheme, limit)
                if self.key is not None and scheme.get("id", "") != before.scheme_id:
                    yield from _check_witness(before, self.key, given, above)
            ways = before.scheme if scheme is None else scheme
            raise_to = above
            if above is not None and "stride" in ways:
                if above > scheme_record.last_value(ways, before.limit):
                    raise self._too_low(before, above)
                raise_to = _strides(ways).highest(above)
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
        """Return the last counter value, at least 1. If the stride has no number up to the limit, raise SchemeError."""
        if self.last is not None and counter is not None:
            _check_limit(self.tag, scheme, self.last, counter, first=1)
        return None if counter is None else max(1, counter)

    def _too_low(self, record: Tag, reserved: int) -> InvalidArgument:
        if self.last is not None:
            problem = f"limit {self.last} is below {reserved}, the highest number reserved"
            return InvalidArgument(problem, tag=self.tag, value=self.last)
        name = "start" if "start" in self.asked.own else "above"
        value = self.asked.get(name)
        limit = scheme_record.last_value(record.scheme, record.limit)
        problem = f"{name} {value} is above the limit {limit}: raise the limit first"
        return InvalidArgument(problem, tag=self.tag, value=value)


def _check_limit(tag: str, scheme: Mapping[str, Any], limit: int, counter: int, *, first: int) -> None:
    """Raise SchemeError if the tag's stride has no number up to `limit`: `counter`, the last one, is below `first`."""
    if "stride" in scheme and counter < first:
        problem = f"{limit} is below the first number, {_strides(scheme).value(first)}"
        raise SchemeError(problem, setting="limit", value=limit, tag=tag)


def _check_witness(record: Tag, key: str, given: Mapping[str, Any], above: int | None) -> Steps[None]:
    """Raise StoreBehind if Redis knows a newer scheme than the store: the store has lost that scheme.

    Its numbers are unknown, and a new scheme could repeat them. The caller can avoid the error by giving the point
    where the new scheme begins: `above` for a stride, or a first number for each scramble key.
    """
    if (above is not None and {"stride", "offset"} & given.keys()) or not isinstance(given.get("scramble", ""), str):
        return
    hash = yield from send(tag_scripts.read_hash(key))
    found = hash.scheme or ""
    if scheme_record.turn(found) > scheme_record.turn(record.scheme_id):
        raise StoreBehind(record.tag, max=record.max, scheme=found)


def _share(part: str, limit: int, shared: TagOptions) -> Steps[None]:
    """Apply a tag's changes to a shard or series. Set its limit as well: older versions allowed a different limit."""
    try:
        yield from floor.configure(part, None, shared.changes(part, limit=limit))
    except LimitTooLow:  # the shard or series has already passed this limit
        yield from floor.configure(part, None, shared.changes(part, limit=None))


def _check_counters(tag: str, strategy: object, asked: TagOptions, last: int | None) -> None:
    """Raise SchemeError if the strategy has no counter and a setting that needs a counter is given."""
    for name, nothing in _COUNTERS.items() if strategy != scheme_record.SEGMENT else ():
        value = last if name == "limit" else asked.get(name)
        if value not in (None, nothing) and (name, strategy) != ("limit", scheme_record.SNOWFLAKE):
            raise SchemeError(
                f"strategy {strategy!r} excludes {brief(value)}: it has no counter, and its numbers increase only "
                "within a process",
                setting=name,
                value=value,
                tag=tag,
            )


def _check_bits(tag: str, scheme: Mapping[str, Any], last: int | None) -> None:
    """Raise SchemeError if the tag's snowflake numbers can be above its limit, `last`."""
    if last is None or scheme_record.strategy(scheme) != scheme_record.SNOWFLAKE:
        return
    with no_fork():
        from issuer.strategies.snowflake.layout import Layout

    layout = Layout.of(scheme.get("options", {}))
    if 1 << layout.bits > last + 1:
        problem = (
            f"{last} has room for {(last + 1).bit_length() - 1} bits, but the layout has {layout.bits} ({layout}). For "
            "limit=js, create the tag with the options time_bits=41, machine_bits=5, sequence_bits=7, or with others "
            "that add up to at most 53"
        )
        raise SchemeError(problem, setting="limit", value=last, tag=tag)


def _check_skipping(record: Tag, asked: TagOptions) -> None:
    """Raise SchemeError if `start` or `above` is given for a tag with shards, series or periods.

    The settings of the scheme are not checked here, but when the changed scheme is made.
    """
    if parts.has_parts(record):
        problem = "cannot be set for a tag with shards or a keyed tag, because each part has its own"
    elif "restart" in record.scheme:
        problem = "cannot be raised: numbers begin at 1 in each period"
    else:
        return
    for name, value in (("start", asked.get("start")), ("above", asked.get("above"))):
        if value is not None:
            raise SchemeError(problem, setting=name, value=value, tag=record.tag)


def _seen(scheme: Mapping[str, Any], counter: int) -> int:
    """Return the number that users see for the counter value of a limit. Of the scheme, only a stride changes it."""
    return _strides(scheme).value(counter) if "stride" in scheme else counter


def _strides(scheme: Mapping[str, Any]) -> Strides:
    with no_fork():
        from issuer.numbers.codec import strides

    return strides(scheme)


def delete(tag: str, config: IssuerConfig) -> Steps[list[str]]:
    """Delete a tag, then its shards or series. Return the names of all these tags.

    If the tag was deleted before, delete the shards or series that an interrupted call has left, and raise UnknownTag.
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
