"""Issues numbers that need more than a plain draw.

Calls are steps (generators), which the blocking or asyncio driver runs.

Such numbers are these:

- Numbers of a tag with shards or a keyed tag: each shard and each series (one per restart key) has a tag of its own,
  such as `orders#17`, which is called a part.
- Numbers with an idempotency key: each call with the same `key` returns the same number.
- Numbers of a strategy, which computes numbers without a counter.
- Numbers with a text, which is made from the number by the tag's format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from issuer.clock import Deadline, monotonic
from issuer.core import parts, scheme_record
from issuer.core.error_mapping import named
from issuer.core.events import Rejected
from issuer.core.issued import Issued
from issuer.core.record import read_record
from issuer.core.requests import TTL
from issuer.core.steps import Steps, ask
from issuer.core.supply import keyed
from issuer.core.supply.runtime import Runtime
from issuer.errors import (
    ConfigurationError,
    CorruptState,
    FormatOverflow,
    InvalidArgument,
    IssuerError,
    NotDecodable,
    SchemeError,
    Unavailable,
    UnknownTag,
    brief,
)
from issuer.forks import no_fork
from issuer.gateway.keys import check_found, check_key, kept_key, part_tag
from issuer.operations.config import IssuerConfig
from issuer.operations.registry import AnyCombiner, TagRegistry
from issuer_persistence.errors import StoreError, TagPresent
from issuer_persistence.records import Tag, now_ms

if TYPE_CHECKING:
    from issuer.numbers.codec import Decoded, Scheme
    from issuer.plugins.chain import Plugins
    from issuer.plugins.contract import Call
    from issuer.strategies.snowflake.aside import MachineNumber, MachineNumbers

log = logging.getLogger("issuer")

#: How long the number of a tag's series is cached, in seconds. Each count of the series takes a request to the store.
SERIES_COUNTED_FOR = 1.0


def plugin_call(record: Tag, n: int, how: DrawOptions, chain: Plugins[Any], *, as_drawn: bool) -> Call:
    """Return the description of a call for the plugins. Raises ConfigurationError if one changes numbers `as_drawn`."""
    tag, strategy = record.tag, scheme_record.strategy(record.scheme)
    if as_drawn and chain.changes(strategy):
        problem = f"tag {tag!r}: a plugin transforms single numbers, so texts and ranges are not available"
        raise ConfigurationError(problem, tag=tag)
    return chain.call(tag, n, strategy, how.shard_key, how.key)


L = TypeVar("L", bound=AnyCombiner)


@dataclass(frozen=True, slots=True)
class DrawOptions:
    """Options of one call for a number: parameters of `Issuer.issue`, and those of a server.

    `owner`: name of the token to which the `key` belongs. `again`: called if an earlier call with this `key` has drawn
    the number. `over`: raised if none has. `series_most`: maximum number of series of the tag.
    """

    key: str | None = None
    ttl: float = TTL
    shard_key: str | bytes | None = None
    restart_key: str | None = None
    owner: str = ""
    again: Callable[[], object] = bool
    over: IssuerError | None = None
    series_most: int | None = None


PLAIN = DrawOptions()


@dataclass(frozen=True, slots=True)
class _Part(Generic[L]):
    """The source of a number: a tag, or one of its parts (a shard or a series). `record`: always that of the tag."""

    combiner: L
    record: Tag
    shard: int | None = None
    restart_key: str | None = None


class Issuing(Generic[L]):
    """Issues the numbers of all tags of an issuer. Both drivers, blocking and asyncio, use this class."""

    def __init__(self, registry: TagRegistry[L], config: IssuerConfig, runtime: Runtime) -> None:
        self._registry = registry
        self._config = config
        self._runtime = runtime
        self._combiner = registry.combiner
        #: For each tag, the time at which its series were counted last, and the number of its series. The number
        #: includes the series that this object has created after the count.
        self._series: dict[str, tuple[float, int]] = {}

    def failed(self, tag: str, error: IssuerError) -> None:
        """Handle a failed call: forget an unknown tag, and emit Rejected, unless this issuer is closed."""
        self._registry.forget_if_unknown(tag)
        if not self._registry.closed:
            self._config.events.emit(Rejected(tag, error))

    def issue(self, tag: str, how: DrawOptions, deadline: Deadline, *, text: bool) -> Steps[Issued]:
        """Issue one number. If `text` is True, the caller needs a text, so the number must fit the format."""
        relay = self._config.relay
        record = None if relay is None else (yield from self.record(tag))
        if relay is not None and record is not None and (how.key is not None or self._config.elsewhere(record)):
            draw, origin = relay.issue(tag, how, deadline), self._combiner(tag).supply.origin
            return (yield from origin.above_seen(draw, lambda issued: [issued.value], old=how.key is not None))
        while True:
            part = yield from self._part(tag, how)  # look it up each time: after a deletion, the old one issues nothing
            try:
                counter = yield from self._counter(part, how, deadline)
                scheme = self._config.texts(part.combiner.supply.state.record or part.record)
                try:
                    return self._issued(part, scheme, counter, text=text)
                except FormatOverflow:
                    # Another process may have changed the format. So read the record again, and try the new format with
                    # the same number: a second draw would make the first number a gap.
                    record = yield from self._combiner(tag).supply.origin.read()
                    return self._issued(replace(part, record=record), scheme, counter, text=text)
            except UnknownTag as error:
                if part.combiner.tag == tag or part.combiner.tag != error.tag:
                    raise
                part.combiner.supply.origin.forget_record()  # the part was deleted: create it again

    def peek(self, tag: str, how: DrawOptions) -> Steps[Issued]:
        """Return the number that the next draw will issue, unless another caller draws first; see Issuer.peek."""
        record, relay = (yield from self.record(tag, make=False)), self._config.relay
        if relay is not None and self._config.elsewhere(record):
            return (yield from relay.peek(tag, how))
        part = yield from self._part(tag, how, make=False)
        supply = part.combiner.supply
        try:
            if supply.state.record is None:
                yield from supply.origin.read(make=False)
            counter = yield from supply.upcoming()
        except UnknownTag:
            if part.combiner.tag == tag:
                raise
            gone = yield from ask(lambda store, timeout: store.get(part.combiner.tag, timeout=timeout))
            with no_fork():
                from issuer.core.supply.peek import after

            counter = yield from after(part.record, 0 if gone is None else gone.max, supply.state.key)
        return self._issued(part, self._config.texts(supply.state.record or part.record), counter, text=True)

    def last(self, tag: str) -> Steps[int | None]:
        """Return the highest number issued according to Redis, or None if no number was issued.

        Numbers that a process has drawn in advance count as issued. For a tag without a counter, InvalidArgument is
        raised.

        If there is no Redis, the result is the highest number that this process has issued. If it has issued none, the
        result is the highest number that the store has reserved.
        """
        record = yield from self.record(check_found(tag), make=False)
        if not scheme_record.countable(record.scheme):
            problem = f"tag {tag!r} has no counter of its own, so its highest number is unknown"
            raise InvalidArgument(problem, tag=tag, value=tag)
        supply = self._combiner(tag).supply
        state = supply.state
        if self._config.redis is None:
            ledger = yield from ask(lambda store, timeout: store.ledger(tag, newest=1, timeout=timeout))
            counter = (state.taken() or (yield from read_record(tag)).max) if ledger else None
        else:
            hash = yield from supply.origin.look()
            if hash.corrupt:
                problem = f"Redis key {state.key}: field {hash.corrupt} is not a whole number"
                raise CorruptState(problem, tag=tag, advice="corrupt_state.recover")
            if (hash.scheme or "") != state.scheme_id:
                yield from supply.origin.read(make=False)
            counter = hash.cur
        return state.value(counter) if counter else None

    def exists(self, tag: str) -> Steps[bool]:
        """Return True if the tag exists. After a deletion by another process, it can return True for up to a minute."""
        combiner = self._registry.combiners.get(check_found(tag))
        if combiner is not None and combiner.supply.state.record and combiner.supply.state.ended is None:
            return True
        try:
            yield from read_record(tag)
        except UnknownTag:
            return False
        return True

    def decode(self, tag: str, shown: int | str, *, who: bool = False) -> Steps[Decoded]:
        """Return the parts of a number or text of the tag, see Issuer.decode. `who`: whether to add the `holder`."""
        if not isinstance(shown, (int, str)):
            raise NotDecodable(f"{brief(shown)} is neither a number nor a text of tag {tag!r}", tag=tag, value=shown)
        try:
            record = yield from self.record(tag, make=False)
        except SchemeError:  # one secret key is missing; numbers that were scrambled with other keys can be decoded
            record = yield from read_record(tag)
        with named(tag):
            scheme = self._config.reader(record)
            found = scheme.decode(shown) if isinstance(shown, int) else scheme.parse(shown)
            strategy = scheme_record.strategy(record.scheme)
            if strategy == scheme_record.SEGMENT:
                return found
            options = record.scheme.get("options", {})
            with no_fork():
                from issuer.strategies.registry import decode

            found = replace(found, fields=decode(strategy, options, found.value))
        return replace(found, holder=(yield from self._holder(strategy, options, found))) if who else found

    def _holder(self, strategy: str, options: Mapping[str, Any], found: Decoded) -> Steps[str | None]:
        with no_fork():
            from issuer.strategies.registry import holder

        try:
            told: str | None = yield from holder(
                strategy, options, found.value, found.tag, self._config.settings.prefix
            )
        except (IssuerError, StoreError) as error:
            log.debug("tag %r: the process that issued %d is unknown: %s", found.tag, found.value, error)
            return None
        return told

    def founded(self, record: Tag, deadline: Deadline) -> Steps[None]:
        """Prepare the strategy of a new tag: call its method `found` (to found, not to find).

        Called only if this process has just created the tag, and no earlier, deleted tag had the same name.
        """
        try:
            origin = self._combiner(record.tag).supply.origin
            origin.use(record)
            yield from (yield from origin.source()).found(deadline)
        except ConfigurationError as error:  # only log it, because other processes may have the right settings
            log.warning("tag %r was created, but this process cannot issue its numbers: %s", record.tag, error)
        except IssuerError as error:
            log.debug("tag %r: the strategy could not prepare the new tag: %s", record.tag, error)

    def delete(self, tag: str, deadline: Deadline) -> Steps[None]:
        with no_fork():
            from issuer.operations import tags

        for name in (yield from tags.delete(tag, self._config)):
            combiner = self._registry.drop(name)
            if combiner is not None and combiner.supply.state.source is not None:
                try:
                    yield from combiner.supply.state.source.close(deadline)
                except IssuerError as error:
                    log.warning("tag %r was deleted, but its strategy could not be closed: %s", name, error)

    def machines(self, tag: str) -> Steps[MachineNumbers]:
        with no_fork():
            from issuer.strategies.snowflake import aside

        return (yield from aside.look((yield from read_record(check_found(tag))), self._config.settings.prefix))

    def set_aside(self, tag: str) -> Steps[list[MachineNumber]]:
        with no_fork():
            from issuer.strategies.snowflake import aside

        return (yield from aside.set_aside((yield from read_record(check_found(tag))), self._config.settings.prefix))

    def record(self, tag: str, *, make: bool = True) -> Steps[Tag]:
        """Return the tag's record. If `make` is True, and the store creates tags at their first use, create the tag.

        A deleted tag is not created.
        """
        supply = self._combiner(tag).supply
        try:
            return supply.state.record or (yield from supply.origin.read(make=make))
        except IssuerError:
            self._registry.forget_if_unknown(tag)
            raise

    def _part(self, tag: str, how: DrawOptions, *, make: bool = True) -> Steps[_Part[L]]:
        """Return the tag, a shard or a series. Raises InvalidArgument for a missing or superfluous key."""
        record = yield from self.record(tag, make=make)
        shards = record.scheme.get("shards")
        for setting, name in scheme_record.PARTS.items():
            given, wanted = getattr(how, name), bool(record.scheme.get(setting))
            if (given is None) == wanted:
                problem = f"tag {tag!r} {'requires a' if wanted else 'does not accept a'} {name}"
                raise InvalidArgument(problem, tag=tag, value=given)
        if how.shard_key is not None and shards is not None:
            with no_fork():
                from issuer.numbers.sharding import shard_of

            shard = shard_of(how.shard_key, 1 << int(shards["shard_bits"]))
            return _Part(self._combiner(part_tag(tag, str(shard))), record, shard)
        if how.restart_key is not None:
            name = part_tag(tag, check_key(how.restart_key))
            return _Part(self._combiner(name), record, restart_key=how.restart_key)
        return _Part(self._combiner(tag), record)

    def _counter(self, part: _Part[L], how: DrawOptions, deadline: Deadline) -> Steps[int]:
        supply = part.combiner.supply
        if scheme_record.strategy(part.record.scheme) != scheme_record.SEGMENT and how.key is not None:
            problem = f"tag {part.combiner.tag!r} has no counter, so it cannot keep numbers by key: omit the key"
            raise InvalidArgument(problem, tag=part.combiner.tag, value=how.key)
        if part.restart_key is not None or part.shard is not None:
            record = supply.state.record or (yield from supply.origin.read(found=self._found(part, how.series_most)))
            if not parts.is_part(record, part.record.tag):
                raise parts.not_a_part(record, part.record.tag)
        if how.key is not None:
            kept = kept_key(supply.state.key, check_key(how.key), how.owner)
            counter, again = yield from keyed.once(supply, kept, how.ttl, deadline, how.over)
            if again:
                how.again()
            return counter
        return (yield from supply.obtain(1, deadline))[0]

    def _found(self, part: _Part[L], series_most: int | None) -> Steps[Tag]:
        """Return the record of a part, such as a series. Create its tag with the present settings of the parent tag.

        If the tag of the part was deleted earlier, it continues after its old numbers. `series_most`: maximum number of
        series of the parent tag, or None.
        """
        with no_fork():
            from issuer.operations import tags

        tag, whole = part.combiner.tag, part.record.tag
        known = yield from tags.records((whole, tag))
        found, record = known[tag], known[whole]
        if found is not None and not found.deleted:
            return found
        if record is None or record.deleted:
            raise UnknownTag(whole)
        if self._config.redis is not None:
            with suppress(Unavailable):  # if the hash belongs to another store, raise ForeignHash instead
                yield from part.combiner.supply.origin.look(probe=False)
        if series_most is not None and part.restart_key is not None:
            yield from self._check_series(record, series_most)
        settings = replace(
            record.settings,
            above=0,
            limit=tags.limit_of_parts(record),
            scheme=tags.scheme_of_parts(record.tag, record.scheme),
        )
        try:
            return (yield from ask(lambda store, timeout: store.create(tag, settings, timeout=timeout)))
        except TagPresent:  # another process has created the tag
            return (yield from read_record(tag))

    def _check_series(self, record: Tag, most: int) -> Steps[None]:
        """Raise InvalidArgument if the tag has `most` series or more. Otherwise the caller creates one more series.

        To count the series, the store must list all of them. So this is done at most once a second. In between, only
        the series that this object creates are added to the count.
        """
        counted = self._series.get(record.tag)
        if counted is None or monotonic() - counted[0] >= SERIES_COUNTED_FOR:
            counted = monotonic(), len((yield from parts.of(record)))
        if counted[1] >= most:
            self._series[record.tag] = counted
            problem = f"tag {record.tag!r} has {most} series or more, and no new one is created: raise series_per_tag"
            raise InvalidArgument(problem, tag=record.tag, argument="restart_key")
        self._series[record.tag] = counted[0], counted[1] + 1

    def _issued(self, part: _Part[L], scheme: Scheme, counter: int, *, text: bool) -> Issued:
        whole = self._config.texts(part.record)
        today = whole.day(now_ms())
        if not part.combiner.supply.state.counts:
            with named(part.record.tag):
                return Issued(part.record.tag, counter, whole.text_of(counter, today=today) if text else "")
        value = scheme.value(counter)
        if part.shard is not None:
            value = whole.sharded(value, part.shard)
        with named(part.record.tag):
            shown = whole.text(counter, today=today, shard=part.shard, key=part.restart_key) if text else ""
        return Issued(part.record.tag, value, shown, counter, scheme.period_name(counter), part.shard)
