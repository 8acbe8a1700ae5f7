"""Errors that are kept after their call: none has a traceback, which holds the frames of the call and its request."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

import issuer
from issuer import IssuerError
from issuer_persistence.errors import StoreError, Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.doors.http.doors import Door, through


class Away(MemoryStore):
    """A store that does not answer while it is away."""

    away = False

    def answer(self) -> None:
        if self.away:
            raise Unconfirmed("away")

    def get(self, tag: str, **named: Any) -> Any:
        self.answer()
        return super().get(tag, **named)

    def reserve(self, *given: Any, **named: Any) -> Any:
        self.answer()
        return super().reserve(*given, **named)

    def tags(self, **named: Any) -> Any:
        self.answer()
        return super().tags(**named)


def raised() -> list[BaseException]:
    """Return the errors of the issuer and its servers that something holds together with a traceback."""
    kinds = (IssuerError, StoreError, redis.RedisError)
    return [each for each in gc.get_objects() if issubclass(type(each), kinds) and each.__traceback__ is not None]


@contextmanager
def nothing_kept() -> Iterator[None]:
    gc.collect()
    before = raised()
    logging.disable()  # pytest keeps the records of the log, which have the errors
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
    gc.collect()
    assert [each for each in raised() if all(each is not other for other in before)] == []


def test_an_issuer_keeps_no_error_of_a_call() -> None:
    store = Away()
    with issuer.connect(redis="none", store=store, scheduler=None, timeout=0.05) as ids:
        for tag, limit in (("a", 100_000), ("b", 100_000), ("full", 1)):
            ids.create(tag, limit=limit)
            ids.next(tag)
        with nothing_kept():
            for tag, kind in (("unknown", issuer.UnknownTag), ("full", issuer.LimitReached)):
                with pytest.raises(kind):
                    ids.next(tag)
            store.away = True
            for tag in ("a", "b"):
                with pytest.raises(issuer.StoreUnavailable):
                    ids.take(tag, 5000)
        with nothing_kept():
            store.away = False
            ids.delete("a")
            with pytest.raises(issuer.UnknownTag):
                ids.next("a")


def test_a_server_keeps_no_error_of_a_request() -> None:
    store = Away()

    async def behave(door: Door) -> None:
        await door.ids.create("a")
        with nothing_kept():
            assert await door.refused("POST", "/v1/tags/unknown/next") == (404, "unknown_tag")
            assert await door.refused("POST", "/v1/tags/unknown/next") == (404, "unknown_tag")
            store.away = True
            for tag in ("a", "b"):
                assert await door.refused("POST", f"/v1/tags/{tag}/next") == (503, "store_unavailable")
            assert (await door.good("GET", "/readyz"))["store"] == "store_unavailable"

    through(behave, store=store, settings={"timeout": 0.2, "store_timeout": 0.1})
