"""Failovers behind Sentinels and in a Cluster, and a MongoDB that is killed and cut off: each twice."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from issuer.cli.chaos.faults import Fault
from issuer.cli.chaos.play import play
from issuer.cli.chaos.world import Terms, World
from tests.chaos.groups import (
    CLUSTER_FAULTS,
    MONGO_FAULTS,
    SENTINEL_FAULTS,
    ClusterWorld,
    MongoWorld,
    SentinelWorld,
)
from tests.chaos.worlds import assert_kept, binary, folder

pytestmark = pytest.mark.live


@pytest.mark.covers("N.1", "N.8")
@pytest.mark.parametrize(
    ("make", "faults"),
    [(SentinelWorld, SENTINEL_FAULTS), (ClusterWorld, CLUSTER_FAULTS), (MongoWorld, MONGO_FAULTS)],
    ids=["Sentinel", "Cluster", "MongoDB"],
)
def test_each_fault_twice_and_no_number_comes_twice(
    make: Callable[[Path, Path, Terms], World], faults: Sequence[Fault]
) -> None:
    with folder() as path, make(path, binary(), Terms()) as world:
        verdict = play(world, [*faults] * 2)
    assert_kept(verdict)
    assert verdict.struck >= 2 * len(faults)
    assert verdict.acknowledged > 1_000


@pytest.mark.covers("N.1")
@pytest.mark.parametrize(
    ("make", "faults"), [(SentinelWorld, SENTINEL_FAULTS), (ClusterWorld, CLUSTER_FAULTS)], ids=["Sentinel", "Cluster"]
)
def test_without_the_fence_the_harness_finds_repeats(
    make: Callable[[Path, Path, Terms], World], faults: Sequence[Fault]
) -> None:
    with folder() as path, make(path, binary(), Terms(without=("fence",), patience=8)) as world:
        verdict = play(world, [*faults] * 3)
    assert verdict.repeats > 0
