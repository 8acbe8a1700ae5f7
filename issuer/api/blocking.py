"""Issuer: the blocking interface, for programs with threads."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Self

from issuer.api.calls.blocking import IssuerCalls
from issuer.core.requests import TAKE_MOST, TTL, only_one, whole
from issuer.engine.blocking import Engine
from issuer.errors import IssuerError
from issuer.gateway.keys import check_tag
from issuer.operations.numbers import DrawOptions
from issuer.settings import seconds
from issuer.threads import finished

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from issuer.drivers.blocking.connections import Connections
    from issuer.engine.scheduler import Chosen
    from issuer.operations.config import IssuerConfig


class Issuer(IssuerCalls):
    """Issues unique, increasing 64-bit numbers for named tags. Create it with `issuer.connect`.

    All threads of a process can share one Issuer. After a fork, the child process can use it too. The child then has
    connections of its own, and shares no number and no thread with its parent.

    Every method that contacts Redis or the store has a `timeout`, in seconds. When this time has passed, the method
    raises StoreUnavailable or RedisUnavailable, depending on which server did not answer. With `timeout=0`, a call uses
    only numbers that the process already holds, or one round trip to Redis.

    Every method can raise ConfigurationError. If the data in Redis or the store cannot be trusted, every method can
    raise CorruptState or FenceError. The other errors are listed for each method.
    """

    engine: Engine

    def __init__(self, config: IssuerConfig, redis: Connections | None, scheduler: Chosen) -> None:
        super().__init__(Engine(config, redis, scheduler, self._publish))

    def _publish(self, numbers: dict[str, Iterator[int]]) -> None:
        #: For each tag, the iterator from which `next` takes numbers. The dict is not read from the engine, because
        #: reading `self.engine` as well for each number would cost 4 % of the time.
        self._open = numbers

    # `timeout` is not keyword-only here, as that would cost 30 of the 80 ns of a number from memory. `key` comes before
    # `timeout`, so that `next("t", 3)` raises an error: 3 is not a valid key, and the caller probably meant `take`. An
    # additional check of the arguments would cost 4 ns.
    def next(
        self,
        tag: str,
        key: str | None = None,
        timeout: float | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
    ) -> int:
        """Return the next number of a tag.

        A strict tag returns a number above every number that an earlier call has returned, in any process. "Earlier"
        means that the other call had returned before this call began. A trend tag's numbers increase within a process.
        For a keyed tag call `issue` instead.

        Args:
            tag: Name of the tag.
            key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process.
                Needs Redis.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            LimitReached: No number is left up to the tag's limit.
            StoreUnavailable: No number is left in Redis and in this process, and the store did not answer in time.
            RedisUnavailable: Redis did not answer in time, and the tag is strict or `key` was given.
            StoreBehind: The tag is halted, or the store has lost reservations. Run `recover`.
            Refused: A plugin rejected the call.
            InvalidArgument: An argument is out of its range.
        """
        if timeout is None and key is None and shard_key is None:
            try:
                return next(self._open[tag])  # from memory, or from a draw: see drivers/blocking/combiner.py
            except (KeyError, StopIteration, TypeError):
                pass
            except IssuerError:
                # No `as error`: one more variable would cost 3 % of the time of a number from memory.
                self._tell_raised(tag)
                raise
        if key is None and shard_key is None:
            if timeout is None and self.engine.chain is None:
                return self._drawn(tag)
            return self.engine.take(tag, 1, self.engine.deadline(timeout))[0]
        only_one(key)
        return self._number(tag, DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key), timeout)

    # Not a part of `next`: the lambda would make variables of `next` slower, and a number from memory takes 0.12 us.
    def _number(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        return finished(lambda: self.engine.number(tag, how, timeout))

    def _drawn(self, tag: str) -> int:
        """Return the next number when `next` has found none in memory."""
        self.engine.enter()
        try:
            combiner = self.engine.registry.combiner(tag)
            if not combiner.supply.alone:
                return next(combiner)
        except IssuerError:
            self._tell_raised(tag)
            raise
        return self.engine.take(tag, 1, self.engine.deadline(None))[0]

    def _tell_raised(self, tag: str) -> None:
        error = sys.exception()
        if isinstance(error, IssuerError):
            self.engine.refused(tag, error)

    def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return a list of exactly n numbers of a tag, in increasing order.

        The numbers can span several segments, so they need not be contiguous. Raises the errors of `next`. If an error
        occurs part-way, for example at the tag's limit, the error's attribute `drawn` contains the numbers that were
        drawn before the error.

        Args:
            tag: Name of the tag.
            n: How many numbers, 1..1 000 000.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return self.engine.take(tag, whole(n, "n", 1, TAKE_MOST), self.engine.deadline(timeout))

    def stream(self, tag: str, *, timeout: float | None = None) -> Iterator[int]:
        """Return an endless iterator over the tag's numbers. Use each iterator in one thread or task only.

        A strict tag's numbers are drawn one by one, each when it is requested. A trend tag's numbers are drawn ahead in
        batches, and served from memory. `next` and all streams of the process use the same batches.

        The tag's `lease` is the size of a batch. If the tag has no lease, the issuer's `lease` is used. If there is no
        lease at all, the first batch has 1000 numbers. If a batch is used up in less than 50 ms, the next batch is
        twice as large, up to a fifth of a segment. If a batch lasts longer than a second, the next batch is half as
        large, but not smaller than 1000.

        Raises the errors of `next`.

        Args:
            tag: Name of the tag.
            timeout: Longest wait for each number in seconds, 0 or more. None means the issuer's `timeout`.
        """
        check_tag(tag)
        self.engine.deadline(timeout)
        return chain.from_iterable(self._pieces(tag, timeout))

    def _pieces(self, tag: str, timeout: float | None) -> Iterator[Iterable[int]]:
        while True:
            finished(lambda: self.engine.lease_for_stream(tag, timeout))
            yield (self.next(tag, timeout=timeout),)
            if self.engine.chain is None:
                # Look up the combiner each time: a process that has forked has a new combiner.
                yield self.engine.registry.combiner(tag).state.open

    def close(self) -> None:
        """Stop background work, return unused numbers, and close the issuer's connections.

        A second call does nothing. Clients, stores and schedulers that were passed to `connect` or `aconnect` stay
        open.
        """
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
