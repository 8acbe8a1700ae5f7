"""Finds the tags that need a segment: Redis reports them, and a slow walk over all tags finds what was not reported.

The blocking twin of this module is generated.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from issuer.care import inspection
from issuer.clock import Deadline, monotonic
from issuer.core.record import PAGE, identity
from issuer.core.scheme_record import countable
from issuer.core.steps import Steps, ask, pipeline, public
from issuer.core.supply.runtime import Runtime
from issuer.drivers.aio.channel import AsyncChannel
from issuer.drivers.aio.combiner import AsyncCombiner
from issuer.drivers.aio.wire import AsyncWire
from issuer.errors import InvalidArgument, IssuerError
from issuer.gateway.keys import due_channel, redis_key, tag_of
from issuer.gateway.tag_scripts import Standing, stands
from issuer.operations.config import IssuerConfig
from issuer.operations.registry import TagRegistry

T = TypeVar("T")

log = logging.getLogger("issuer")

#: A walk over all tags begins this many seconds after the last one began. The first walk, and one after a lost
#: connection, look at a page of tags a second. Later ones look at a page in PAGE_EVERY seconds at most: a page of 1000
#: tags takes 20 ms of processor time. So the cost does not grow with the number of tags.
WALK_EVERY = 600.0
PAGE_EVERY = 30.0

#: Longest wait for a report in seconds. Then the job checks whether it must end: without a sweep for SWEPT seconds, the
#: scheduler was stopped.
LISTEN = 1.0
SWEPT = 5.0


class AsyncRun(Protocol):
    """A function that runs steps: generators that yield the requests to Redis and to the store."""

    async def __call__(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run the steps within the deadline, and return their result. `tag` is the tag that errors name, or None."""


class AsyncKeeper:
    """Loads the segments of all tags of the store, whoever draws from the tags."""

    def __init__(
        self,
        registry: TagRegistry[AsyncCombiner],
        config: IssuerConfig,
        runtime: Runtime,
        redis: AsyncWire[Any],
        *,
        run: AsyncRun,
        background: Callable[..., bool],
    ) -> None:
        """`run` runs steps. `background` runs a job, and returns False if that is impossible."""
        self._registry = registry
        self._config = config
        self._runtime = runtime
        self._channel = AsyncChannel(redis, due_channel(config.settings.prefix))
        self._run = run
        self._background = background
        #: Whether `start` was called, whether a job waits for reports, and when the last sweep began.
        self._on = False
        self._listening = False
        self._swept_at = 0.0
        #: The error with which the last job ended, until Redis can be subscribed to again.
        self._trouble: IssuerError | None = None
        #: How many tags the last walk has found; how many the present one has found, and its last tag.
        self._all = 0
        self._found = 0
        self._after: str | None = None
        #: Whether a new walk must begin; whether the present one is urgent; when it began, and when its next page is
        #: due, on the monotonic clock.
        self._anew = False
        self._urgent = False
        self._began = 0.0
        self._due = 0.0

    async def start(self, deadline: Deadline) -> None:
        """Load segments from now on. Raises an error if Redis or the store does not answer, also if it was started."""
        found = await self._run(inspection.look_at_redis(inspection.Readiness()), deadline, None)
        if found.redis is not None:
            raise found.redis
        store_id = await self._run(public(identity(), None), deadline, None)
        self._runtime.identity.id = self._runtime.identity.id or store_id
        if not self._on:
            await self.hear(0)
            self._on = True
            self._runtime.attend()
        elif self._trouble is not None:
            raise self._trouble

    def swept(self) -> None:
        """Wait for reports in the background. Each sweep calls this: without sweeps, the waiting ends."""
        if self._on:
            self._swept_at = monotonic()
            if not self._listening:
                self._listening = True
                if not self._background(self._listen):
                    self._listening = False

    async def _listen(self) -> None:
        """Wait for reports. After an error, the next sweep begins again."""
        try:
            while not self._registry.closed and monotonic() - self._swept_at < SWEPT:
                await self.hear(LISTEN)
                self._trouble = None
        except IssuerError as error:
            self._trouble = error
        finally:
            await self._channel.close()
            self._listening = False

    async def end(self) -> None:
        """Close the connection, unless a job waits for reports: this job closes the connection at its end."""
        if not self._listening:
            await self._channel.close()

    async def hear(self, seconds: float) -> None:
        """Wait at most `seconds` seconds for tags that Redis reports, and load their segments in the background."""
        keys = await self._channel.receive(seconds)
        if keys is None:
            self._anew = True  # reports may be lost, or Redis may have lost its data
        for key in set(keys or ()):
            tag = tag_of(self._config.settings.prefix, key)
            if tag is not None:
                with suppress(InvalidArgument):  # another program has published it
                    self._registry.combiner(tag).supply.reported()

    @property
    def tags(self) -> int:
        """How many tags there are, as far as it is known."""
        return max(self._all, self._found)

    @property
    def walks(self) -> bool:
        """Whether the next page of the walk is due."""
        return self._on and (self._anew or monotonic() >= self._due)

    async def look(self) -> None:
        """Do the work once: process what Redis has reported so far, then look at a page of tags, if one is due."""
        if self._on and not self._listening:
            try:
                await self.hear(0)
            except IssuerError as error:
                log.debug("the keeper could not receive reports: %s", error)
        await self.walk()

    async def walk(self) -> None:
        """Look at the next page of all tags, if it is due. The next sweep looks after those that need a segment."""
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
        page = await self._run(
            public(ask(lambda store, left: store.tags(after=after, count=PAGE, timeout=left)), None),
            Deadline(settings.store_timeout),
            None,
        )
        names = [record.tag for record in page if countable(record.scheme)]
        calls = [stands(redis_key(settings.prefix, tag)) for tag in names]
        found = await self._run(pipeline(calls), Deadline(settings.store_timeout), None) if calls else []
        for tag, standing in zip(names, found, strict=True):
            # A tag without a hash needs no segment yet. Its first draw reports it.
            if not isinstance(standing, Standing) or standing.due or self._foreign(standing):
                self._registry.combiner(tag).supply.used()
        self._found += len(page)
        if len(page) == PAGE:
            self._after = page[-1].tag
            if not self._urgent:
                self._due = monotonic() + max(PAGE_EVERY, WALK_EVERY * PAGE / max(PAGE, self._all))
        else:
            self._after, self._all, self._urgent = None, self._found, False
            self._due = self._began + WALK_EVERY

    def _foreign(self, standing: Standing) -> bool:
        ours = self._runtime.identity.id
        return bool(ours) and standing.store not in (None, ours)
