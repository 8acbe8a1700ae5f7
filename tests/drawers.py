"""Threads that draw while a test lets things go wrong, and what must be true of their numbers."""

import threading
from collections.abc import Sequence
from typing import Self

import issuer
from issuer import Issuer
from issuer_persistence.contract import Store
from tests.audit import Draw, drawn, order_violations, repeats
from tests.waiting import until


class Drawers:
    """Threads that draw until told to stop, and note every number with the times of its call. Errors are counted."""

    def __init__(self, issuers: Sequence[Issuer], tag: str, threads: int = 4) -> None:
        self.draws: list[Draw] = []
        self.errors: list[issuer.IssuerError] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._draw, args=(issuers[number % len(issuers)], tag)) for number in range(threads)
        ]

    def _draw(self, ids: Issuer, tag: str) -> None:
        while not self._stop.is_set():
            try:
                self.draws.append(drawn(lambda: ids.next(tag)))
            except issuer.IssuerError as error:
                self.errors.append(error)
                self._stop.wait(0.01)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *rest: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def more(self, count: int) -> None:
        """Wait until that many more numbers have come."""
        wanted = len(self.draws) + count
        until(
            lambda: len(self.draws) >= wanted, timeout=60, message=f"{count} more numbers; errors: {self.errors[-1:]}"
        )

    @property
    def numbers(self) -> list[int]:
        return [draw.number for draw in self.draws]


def assert_sound(drawers: Drawers, store: Store, tag: str = "a", *, ordered: bool = True) -> None:
    """No number came twice or from above the store's max; `ordered`: none was lower than one drawn before its call."""
    record = store.get(tag, timeout=60)
    assert record is not None
    assert repeats(drawers.numbers) == []
    assert max(drawers.numbers) <= record.max
    assert not ordered or order_violations(drawers.draws) == []
