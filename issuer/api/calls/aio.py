"""The methods of an issuer that are the same for threads and for asyncio: all except `next`, `take`, `stream`, `close`.

`blocking.py` beside this module has the signatures and docstrings of the same methods for threads. It is generated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from issuer.api.base import AnyIssuer
from issuer.core.record import sound
from issuer.core.requests import TTL
from issuer.core.steps import ask
from issuer.forks import no_fork
from issuer.operations.numbers import DrawOptions
from issuer.operations.tag_options import ConfigureOptions, CreateOptions, TagOptions
from issuer.settings import seconds
from issuer_persistence.records import Tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from issuer.care.discrepancies import Discrepancy
    from issuer.care.doctor.findings import Finding
    from issuer.care.inspection import Inspection, Readiness
    from issuer.care.recovery import Named, Recovery
    from issuer.care.verification import Provenance
    from issuer.core.issued import Issued
    from issuer.numbers.codec import Decoded
    from issuer.strategies.snowflake.aside import MachineNumber, MachineNumbers
    from issuer_persistence.facts import Upgrade
    from issuer_persistence.ledger import LedgerPage, Position


class AsyncIssuerCalls(AnyIssuer):
    """The methods of an AsyncIssuer, except those that differ from the ones of an Issuer.

    An Issuer has an object of this class. Its coroutines then never wait for an event loop. See
    `issuer.threads.finished`.
    """

    async def issue(
        self,
        tag: str,
        *,
        key: str | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Draw one number as `next` does, and return it with its text, period and shard.

        Raises the errors of `next`, and FormatOverflow if the number is too long for the tag's format. Raises
        ConfigurationError if a plugin transforms the tag's numbers, because the text could not show its changes.

        Args:
            tag: Name of the tag.
            key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process.
                Needs Redis.
            ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
            restart_key: Key that selects the series. Required for a keyed tag, and not allowed for any other tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        how = DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key, restart_key)
        return await self.engine.issue(tag, how, timeout)

    async def composed(self, tag: str, *, timeout: float | None = None) -> bool:
        """Return True if the tag's numbers have a text, a period or a shard. `issue` returns these; `next` does not.

        This process uses the tag's settings as it last read them. If this process has not read them yet, it reads them
        from the store. If the issuer uses the default store, a missing tag is created, as `next` does.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            StoreUnavailable: The store did not answer in time.
        """
        return await self.engine.composed(tag, timeout)

    async def peek(
        self,
        tag: str,
        *,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Return what `issue` will return next if no other caller draws first. No number is consumed.

        Raises the errors of `next`. Raises InvalidArgument if the tag's strategy has no counter, because its numbers
        cannot be predicted.

        Args:
            tag: Name of the tag.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
            restart_key: Key that selects the series. Required for a keyed tag, and not allowed for any other tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        how = DrawOptions(shard_key=shard_key, restart_key=restart_key)
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.peek(tag, how), deadline, tag)

    async def decode(
        self, tag: str, shown: int | str, *, holder: bool = False, timeout: float | None = None
    ) -> Decoded:
        """Return the parts of a number or of its text: counter, period, shard, key and others.

        Args:
            tag: Name of the tag.
            shown: The number, or its text in the tag's format.
            holder: If True, also find the process that holds or held the machine number. Only for snowflake tags.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Returns:
            The parts. A part is None if the tag does not have it, or if it is unknown.

        Raises:
            NotDecodable: The tag, as it is configured now, cannot have issued this number or text.
            UnknownTag: The tag was never created, or was deleted.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.decode(tag, shown, who=holder), deadline, tag)

    async def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers of a trend tag, reserved in the store with one request.

        Args:
            tag: Name of the tag.
            n: How many numbers, 1 up to the tag's limit.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            LimitReached: Fewer than n numbers are left up to the limit. Nothing was reserved.
            InvalidArgument: The tag is strict, its numbers are not counter values, or n is out of its range.
            StoreUnavailable: The store did not answer in time.
        """
        return await self.engine.reserve(tag, n, timeout)

    # ------------------------------------------------------------------ tags

    async def create(
        self,
        tag: str,
        *,
        exist_ok: bool = False,
        timeout: float | None = None,
        **options: Unpack[CreateOptions],
    ) -> Tag:
        """Create a tag, and return it. A deleted tag that is created again continues above its old numbers.

        Args:
            tag: Name of the tag: 1 to 200 bytes, without control characters, and without blanks at its ends.
            exist_ok: If True and the tag exists, return it unchanged. The tag's step, lease, description and
                settings of segments may differ from the arguments.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            **options: Settings of the tag, see CreateOptions, ConfigureOptions and SchemeOptions.

        Raises:
            TagExists: The tag exists, and `exist_ok` is False.
            TagDiffers: The tag exists with another order, limit, scheme or strategy, or its next number is lower than
                `start`.
            InvalidArgument: A setting is out of its range.
            SchemeError: A setting of the scheme is wrong, or contradicts another setting.
        """
        return await self.engine.create(tag, TagOptions.of(options), exist_ok=exist_ok, timeout=timeout)

    async def create_many(
        self, wanted: Mapping[str, Mapping[str, Any]], *, exist_ok: bool = False, timeout: float | None = None
    ) -> list[Tag]:
        """Create several tags: all or none of them. Return them in the order of `wanted`.

        It takes much less time than a call of `create` for each tag. While the store writes the tags, other calls that
        change the store wait: 500 tags take about 0.1 s. In MongoDB, some of the tags may have been created if the
        process ends during the call: repeat the call with `exist_ok=True`.

        Args:
            wanted: For each tag, by name, the arguments of `create`, by name. For example,
                `{"orders": {"start": 1000}, "bills": {}}`.
            exist_ok: If True, tags that exist are returned unchanged, as by `create`.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            IssuerError: The errors of `create`. The error's attribute `tag` is the tag that cannot be created.
        """
        asked = {tag: TagOptions.of(options) for tag, options in wanted.items()}
        return await self.engine.create_many(asked, None, exist_ok=exist_ok, timeout=timeout)

    async def configure(
        self,
        tag: str,
        *,
        timeout: float | None = None,
        **options: Unpack[ConfigureOptions],
    ) -> Tag:
        """Change settings of a tag while it is in use, and return the changed tag. None leaves a setting unchanged.

        Every process applies most changes at its next reservation. Every process applies a changed `lease` within a
        minute. A changed `start` or `above` applies in Redis when this call returns.

        A process that holds numbers of a trend tag can still issue some of them after this call. If the numbers are a
        lease from Redis, the process issues them until its next check of the lease, within about two seconds. If the
        process works without Redis, it issues the numbers of at most two segments.

        If the tag has shards or is keyed, `step`, `lease`, `drain` and the settings of segments (`target`, `min_step`,
        `max_step`, `ahead`, `refill_at`, `survive`) change in each of its parts. A part cannot be changed alone.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            **options: Settings to change, see ConfigureOptions and SchemeOptions.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            InvalidArgument: A setting is out of its range, or nothing would change.
            SchemeError: A setting of the scheme is wrong, or cannot be changed.
        """
        return await self.engine.configure(tag, TagOptions.of(options, new=False), timeout)

    async def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Delete a tag and its parts. Calls for its numbers raise UnknownTag from then on.

        The store keeps the tag's highest number. If the tag is created again, it starts after this number.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            InvalidArgument: The tag is a part of another tag. Delete that tag instead.
        """
        await self.engine.delete(tag, timeout)

    async def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, sorted by name. They are read by pages of 1000.

        Args:
            timeout: Longest wait for each page in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return [sound(record) async for page in self.engine.care.tag_pages(timeout) for record in page]

    async def inspect(self, tag: str, *, deleted: bool = False, timeout: float | None = None) -> Inspection:
        """Return the state of a tag in the store and in Redis. Nothing is changed.

        If Redis cannot be reached, the attribute `redis_error` of the result contains the reason.

        Args:
            tag: Name of the tag.
            deleted: If True, return the last state of a deleted tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: There is no tag of this name. If `deleted` is True, there is no deleted tag of this name.
            StoreUnavailable: The store did not answer in time.
        """
        self.engine.enter()
        return await self.engine.care.inspect(tag, timeout, deleted=deleted)

    async def segments(
        self,
        tag: str,
        count: int = 100,
        *,
        beyond: Position | None = None,
        upward: bool = False,
        timeout: float | None = None,
    ) -> LedgerPage:
        """Return one page of the tag's ledger: its segments, those with the highest numbers first.

        Args:
            tag: Name of the tag.
            count: Entries per page, 1..1000. Damaged entries, which are in the attribute `damaged`, count too.
            beyond: Attribute `last` of the previous page. Omit it for the first page. If `last` is None, there are no
                more pages.
            upward: If True, return the segments with the lowest numbers first.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
        """
        with no_fork():
            from issuer.care import inspection

        steps = inspection.segments(tag, count, beyond, upward=upward)
        return await self.engine.run(steps, self.engine.deadline(timeout), tag)

    async def machines(self, tag: str, *, timeout: float | None = None) -> MachineNumbers:
        """Return all machine numbers that a snowflake tag ever used. Nothing is changed.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            InvalidArgument: The tag has no machine numbers, or keeps them in files.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.machines(tag), deadline, tag)

    async def set_aside(self, tag: str, *, timeout: float | None = None) -> list[MachineNumber]:
        """Set aside the machine numbers of a snowflake tag that were used with a future time, and return them.

        Use this method after a clock was far ahead and has been corrected. Stop the tag's processes before the call,
        and start them after it. Each process then takes another machine number. The process need not wait until the
        future time has passed.

        No number is issued twice, because the store or Redis keeps the last time of each machine number. Until the
        future time, a machine number that was set aside is used only if no other is free. Until then, new numbers are
        lower than those that were issued with the wrong clock.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            InvalidArgument: The tag has no machine numbers, or keeps them in files.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.set_aside(tag), deadline, tag)

    # ------------------------------------------------------------------ operations

    async def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Wait until numbers of the tag are loaded, so that the first `next` need not wait for the store.

        Raises the errors of `next`.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        await self.engine.warm(tag, timeout)

    async def keep(self, *, timeout: float | None = None) -> None:
        """Load segments in the background for every tag of the store from now on, also for tags that are created later.

        Without this call, an issuer loads segments only for tags from which it draws numbers. If a caller that cannot
        load needs a segment, Redis reports this at once, also for the first segment of a tag. In addition, tags with
        numbers in Redis are checked every ten minutes, at most 1000 tags in 30 seconds. A second call of `keep` only
        checks that Redis and the store answer.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            ConfigurationError: The issuer has no Redis.
            RedisUnavailable: Redis does not answer.
            StoreUnavailable: The store does not answer.
            FenceError: The Redis user has no permission to subscribe to the channel of the reports.
        """
        self.engine.enter()
        await self.engine.upkeep.keep(timeout)

    async def tick(self, *, timeout: float | None = None) -> int:
        """Load the segments that are due, and return how many were loaded.

        Only tags from which this process has drawn since the last call are checked.

        Call `tick` regularly if the issuer was created with `scheduler=None`. If loading fails for one tag, the error
        is logged, and `tick` continues with the other tags.

        Args:
            timeout: Longest wait for each tag in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self.engine.enter()
        return await self.engine.upkeep.tick(timeout)

    async def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Compare the ledger, the store and Redis, and return the discrepancies. Nothing is changed.

        If the list is empty, no two segments overlap, and no number higher than the store's `max` is reserved or loaded
        into Redis. The check is safe while numbers are drawn. `verify` reads the whole ledger, in pieces of 2000
        entries. If Redis cannot be reached, only the ledger and the store are compared, and the list contains a
        discrepancy of the kind "Redis not looked at". At most 100 discrepancies are returned for each tag.

        Args:
            tag: Name of the tag. Its parts are checked too. None means all tags.
            timeout: Longest wait for each request in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            StoreUnavailable: The store did not answer in time.
        """
        return await self.engine.care.verify(tag, timeout)

    async def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return the origin of a number: the process that reserved its segment, the time and the purpose.

        If Redis cannot be reached, only the store is queried.

        Args:
            tag: Name of the tag.
            number: Counter value to look up, 1..2^63-1. If the tag has a scheme, this value can differ from the
                number that users see. `decode` returns the counter value.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
        """
        with no_fork():
            from issuer.care.verification import who

        return await self.engine.run(who(self.engine.config.hash_key, tag, number), self.engine.deadline(timeout), tag)

    async def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop all reservations of a tag and its parts, in every process, until `recover` is run.

        Numbers that were reserved before the halt are still issued: those in Redis, in leases and in segments of
        processes. When these numbers are used up, calls raise StoreBehind. A second call of `halt` does nothing.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
        """
        await self.engine.halt(tag, timeout)

    async def upgrade(self, *, timeout: float | None = None) -> Upgrade:
        """Upgrade the schema of the store to this version, and return the versions before and after.

        The first call that reserves numbers also upgrades the schema. Calls that only read never upgrade it. After an
        upgrade, programs of an older version may reject the store.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(ask(lambda store, left: store.upgrade(timeout=left)), deadline, None)

    async def recover(
        self,
        tag: str | None = None,
        *,
        at_least: int = 0,
        from_journal: Named = (),
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[Recovery]:
        """Make sure that no number up to the highest known number is issued again, and end a halt.

        `recover` looks for the highest number in the store, its ledger, Redis, the journals and `at_least`. In Redis it
        also queries replicas and former masters, if they answer soon. `recover` compares counter values, not the
        numbers that users see. A process that holds numbers of a trend tag can still issue some of them, as described
        for `configure`.

        You can call `recover` again, on several machines at once, and while numbers are drawn.

        Args:
            tag: Name of the tag. Its parts are recovered too. None means all tags: if a tag fails, the others are still
                tried, and the first error is raised at the end.
            at_least: Highest counter value known from elsewhere, such as your tables, 0..2^63-1. Only for a single tag.
                `decode` returns the counter value of a number.
            from_journal: Paths of journal files in any order, or the result of `issuer_persistence.journal.read`. Tags
                that the store has lost are created again. Journals of another store are accepted only if this store is
                empty, or was restored from them.
            dry_run: If True, change nothing, and report what would be done. A dry run also works without Redis, see
                `Recovery.redis_error`.
            timeout: Longest wait for each request in seconds, 0 or more. None means the issuer's `timeout`.

        Returns:
            The result for each tag. `Recovery.unasked` lists Redis nodes that could not be queried.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            JournalDamaged: A line of a journal is damaged.
            ConfigurationError: The journals belong to another store.
            StoreUnavailable: The store did not answer in time.
            RedisUnavailable: Redis did not answer in time.
        """
        return await self.engine.care.recover(tag, at_least, from_journal, dry_run=dry_run, timeout=timeout)

    async def ready(self, *, timeout: float | None = None) -> Readiness:
        """Check whether the store and Redis answer, and which tags are halted. Nothing is changed.

        Problems are in the result, and are not raised. The result is true if there are no problems.

        Args:
            timeout: Longest wait for each page of 1000 tags in the store, and again for Redis, in seconds, 0 or more.
                None means the issuer's `timeout`.
        """
        return await self.engine.care.ready(timeout)

    async def doctor(
        self, *, progress: Callable[[int, int], object] | None = None, timeout: float | None = None
    ) -> list[Finding]:
        """Check Redis, the store, the settings and the tags, and return the findings, the worst first.

        Nothing is changed. A finding of level "weak" reports a risk of duplicates, lost order or an outage. If a server
        cannot be reached, that is a finding too, and no error is raised.

        Args:
            progress: Function that is called after each tag with the number of tags checked and the total.
            timeout: Longest wait for each request in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.care.doctor(progress, timeout)
