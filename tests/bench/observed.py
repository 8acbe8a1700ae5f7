"""Numbers while metrics count them, beside the same numbers without."""

from collections.abc import Iterator
from contextlib import ExitStack

import issuer
from tests.bench.figures import Bound, Figure
from tests.bench.local import LEASE
from tests.bench.rounds import SLICES, Contender, Effort, alternate, each, written
from tests.bench.servers import ENDLESS, PREFIX, TAG, redis_server

LEASED = "leased"


def observed(effort: Effort) -> Iterator[Figure]:
    """next(tag) with metrics=True beside next(tag) without, strict and leased, one caller."""
    with ExitStack() as ends:
        server = ends.enter_context(redis_server())
        strict: dict[str, Contender] = {}
        leased: dict[str, Contender] = {}
        for place, metrics in enumerate((True, False)):
            # A prefix for each, so that they don't draw from one hash.
            settings = {"redis": server.url, "store": "memory://", "prefix": f"{PREFIX}{place}"}
            ids = ends.enter_context(issuer.connect(**settings, metrics=metrics))  # type: ignore[arg-type]
            ids.create(TAG, step=ENDLESS)
            ids.create(LEASED, step=ENDLESS, order="trend", lease=LEASE)
            ids.next(TAG)
            ids.next(LEASED)
            how = "with metrics" if metrics else "without"
            strict[f"next, strict, {how}"] = each(lambda ids=ids: ids.next(TAG), effort.calls // SLICES)  # type: ignore[misc]
            leased[f"next, leased, {how}"] = written(effort.fast, "ids.next(tag)", ids=ids, tag=LEASED)
        for contenders, unit, slices in ((strict, "us", SLICES), (leased, "ns", 1)):
            rounds = alternate(contenders, effort.rounds, unit, slices)
            yield from rounds.figures()
            counted, uncounted = contenders
            yield rounds.ratio(counted, uncounted, Bound(1.02, 1.0), f"{counted} / without")
