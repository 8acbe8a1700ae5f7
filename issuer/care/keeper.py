"""Finds the tags that need a segment. Redis reports such tags. A slow walk over all tags finds those not reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from issuer.care import inspection
from issuer.clock import Deadline, monotonic
from issuer.core.record import PAGE, identity, page_of_tags
from issuer.core.scheme_record import countable
from issuer.core.steps import kept, pipeline, public, renewed
from issuer.core.supply.runtime import Runtime
from issuer.drivers.channel import Channel
from issuer.drivers.running import Run
from issuer.drivers.wire import Wire
from issuer.errors import InvalidArgument, IssuerError
from issuer.gateway.keys import due_channel, redis_key, tag_of
from issuer.gateway.tag_scripts import Hash, read_hash
from issuer.operations.config import IssuerConfig
from issuer.operations.registry import TagRegistry
from issuer_persistence.holding import acquired
from issuer_persistence.records import Tag

T = TypeVar("T")

log = logging.getLogger("issuer")

#: A walk reads all tags, page by page. It begins this many seconds after the last walk began.
WALK_EVERY = 600.0
#: The first walk, and a walk after a lost connection, read a page per second. All other walks wait at least this many
#: seconds between two pages: a page of 1000 tags takes 20 ms of processor time. So the cost does not grow with the
#: number of tags.
PAGE_EVERY = 30.0

#: Longest wait for a report in seconds. After it, the job that waits for reports checks whether it must end.
LISTEN = 1.0
#: If there was no sweep for this many seconds, the scheduler was stopped, and the job ends.
SWEPT = 5.0


class Keeper:
    """Loads the segments of all tags of the store, also of tags from which only other processes draw."""

    def __init__(
        self,
        registry: TagRegistry[Any],
        config: IssuerConfig,
        runtime: Runtime,
        redis: Wire[Any],
        *,
        run: Run,
        background: Callable[..., bool],
    ) -> None:
        """`run` runs steps. `background` runs a job in the background. It returns False if that is impossible."""
        self._registry = registry
        self._config = config
        self._runtime = runtime
        self._channel = Channel(redis, due_channel(config.settings.prefix))
        self._run = run
        self._background = background
        #: Whether `start` was called.
        self._on = False
        #: Held while `start` connects. Only one call may connect: the connection of another one would never be closed.
        self._starting = threading.Lock()
        #: Whether a job waits for reports.
        self._listening = False
        #: When the last sweep began, on the monotonic clock.
        self._swept_at = 0.0
        #: Error with which the job that waits for reports ended. None after a new job has waited without an error.
        self._trouble: IssuerError | None = None
        #: How many tags the last complete walk has found.
        self._all = 0
        #: How many tags the current walk has found so far.
        self._found = 0
        #: Name of the last tag that the current walk has read. None if no walk is in progress.
        self._after: str | None = None
        #: Whether a new walk must begin at once, because reports may be lost.
        self._anew = False
        #: Whether the current walk reads a page per second.
        self._urgent = False
        #: When the current walk began, on the monotonic clock.
        self._began = 0.0
        #: When the next page must be read, on the monotonic clock.
        self._due = 0.0

    async def start(self, deadline: Deadline) -> None:
        """Load segments from now on. Raises an error if Redis or the store does not answer.

        A second call only checks again whether both answer, also while the first call connects. A background job waits
        for reports of Redis. If the job ended with an error, the second call raises this error.
        """
        if (error := await self._run(inspection.look_at_redis(), deadline, None)) is not None:
            raise error
        store_id = await self._run(public(identity(), None), deadline, None)
        self._runtime.identity.id = self._runtime.identity.id or store_id
        if not self._on:
            locks: list[threading.Lock] = []
            try:
                if acquired(self._starting, 0, locks):
                    await self.hear(0)
                    self._on = True
                    self._runtime.attend()
            finally:
                for each in locks:
                    each.release()
        elif self._trouble is not None:
            raise renewed(self._trouble)

    def swept(self) -> None:
        """Note the time of this sweep, and start the job that waits for reports, unless it runs.

        Each sweep calls this method. If it is not called for 5 s, the scheduler was stopped, and the job ends.
        """
        if self._on:
            self._swept_at = monotonic()
            if not self._listening:
                self._listening = True
                if not self._background(self._listen):
                    self._listening = False

    async def _listen(self) -> None:
        """Receive the reports of tags that need a segment. This is a background job.

        The job ends when the issuer is closed, or when there are no sweeps. It also ends after an error: then the next
        sweep starts a new job.
        """
        try:
            while not self._registry.closed and monotonic() - self._swept_at < SWEPT:
                await self.hear(LISTEN)
                self._trouble = None
        except IssuerError as error:
            self._trouble = kept(error)
        finally:
            await self._channel.close()
            self._listening = False

    async def end(self) -> None:
        """Close the connection to Redis. If a job still waits for reports, the job closes the connection at its end."""
        if not self._listening:
            await self._channel.close()

    async def hear(self, seconds: float) -> None:
        """Wait at most `seconds` seconds for tags that Redis reports, and load their segments in the background."""
        keys = await self._channel.receive(seconds)
        if keys is None:
            self._anew = True  # the connection is new: earlier reports may be lost, or Redis may have lost its data
        for key in set(keys or ()):
            tag = tag_of(self._config.settings.prefix, key)
            if tag is not None:
                with suppress(InvalidArgument):  # another program has published this invalid name
                    self._registry.combiner(tag).supply.reported()

    @property
    def tags(self) -> int:
        """Number of tags of the store: the higher of the counts of the last complete walk and of the current one."""
        return max(self._all, self._found)

    @property
    def walks(self) -> bool:
        return self._on and (self._anew or monotonic() >= self._due)

    async def look(self) -> None:
        """Do the work once: process the reports of Redis so far. Then read a page of tags if one is due."""
        if self._on and not self._listening:
            try:
                await self.hear(0)
            except IssuerError as error:
                log.debug("the keeper could not receive reports: %s", error)
        await self.walk()

    async def walk(self) -> None:
        """If the next page of the walk is due, read it. The next sweep loads segments for its tags that need one."""
        if self.walks:
            try:
                await self._walk()
            except IssuerError as error:
                log.debug("the keeper could not look at all tags: %s", error)

    async def _walk(self) -> None:
        if self._anew:
            self._anew, self._urgent, self._after = False, True, None
        settings, after = self._config.settings, self._after
        if after is None:
            self._began, self._found = monotonic(), 0
        # If this page fails, another attempt is made a second later.
        self._due = monotonic() + 1.0
        page = await self._run(public(page_of_tags(after, PAGE), None), Deadline(settings.store_timeout), None)
        names = [record.tag for record in page if isinstance(record, Tag) and countable(record.scheme)]
        calls = [read_hash(redis_key(settings.prefix, tag)) for tag in names]
        found = await self._run(pipeline(calls), Deadline(settings.store_timeout), None) if calls else []
        for tag, hash in zip(names, found, strict=True):
            # A tag without a hash needs no segment yet. When the first number is drawn, Redis reports the tag.
            if not isinstance(hash, Hash) or ((hash.top or hash.store) and (hash.due or self._foreign(hash))):
                self._registry.combiner(tag).supply.used()
        self._found += len(page)
        if len(page) == PAGE:
            self._after = page[-1].tag
            if not self._urgent:
                self._due = monotonic() + max(PAGE_EVERY, WALK_EVERY * PAGE / max(PAGE, self._all))
        else:
            self._after, self._all, self._urgent = None, self._found, False
            self._due = self._began + WALK_EVERY

    def _foreign(self, hash: Hash) -> bool:
        ours = self._runtime.identity.id
        return bool(ours) and hash.store != ours
