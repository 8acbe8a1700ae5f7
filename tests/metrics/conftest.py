"""A world in virtual time, and registries that only one test has."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from issuer import Issuer
from issuer.metrics import Metrics, install
from tests.colours import COLOURS
from tests.metrics.shown import watched
from tests.proofs.virtual.world import World, world
from tests.seeds import seeded

Measure = Callable[..., Metrics]
Measured = Callable[..., AbstractContextManager[tuple[Issuer, Metrics]]]


@pytest.fixture(params=COLOURS)
def made(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(request.param, seeded(7)) as each:
        yield each


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def measure(registry: CollectorRegistry) -> Measure:
    """Have the metrics of an issuer of either colour in this test's registry."""

    def install_in_it(ids: Issuer, **options: Any) -> Metrics:
        return install(watched(ids), registry, **options)  # type: ignore[arg-type]  # of either colour

    return install_in_it


@pytest.fixture
def measured(made: World, measure: Measure) -> Measured:
    """Connect in virtual time: `with measured(**settings) as (ids, metrics)`."""

    @contextmanager
    def connected(**settings: Any) -> Iterator[tuple[Issuer, Metrics]]:
        with made.connect(**settings) as ids:
            yield ids, measure(ids)

    return connected
