"""Which tags get labels, that no name that callers made up is one, and that registries are apart."""

import subprocess
import sys

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest

import issuer
from issuer import ConfigurationError, Issuer
from issuer.metrics import install
from tests.colours import COLOURS, Connect
from tests.metrics.conftest import Measure
from tests.metrics.shown import Shown, shown, watched
from tests.refusals import refused

pytestmark = [pytest.mark.colours(*COLOURS), pytest.mark.usefixtures("patient")]
ALONE = {"redis": "none", "store": "memory://", "scheduler": None}


def in_registry(registry: CollectorRegistry = REGISTRY) -> Shown:
    return Shown(generate_latest(registry).decode())


def direct(ids: Issuer, *tags: str) -> None:
    for tag in tags:
        ids.create(tag, order="trend", step=100)
        ids.next(tag)


def test_so_many_tags_get_labels_and_the_others_share_one(connect: Connect, measure: Measure) -> None:
    with connect(**ALONE) as ids:
        metrics = measure(ids, tags=3)
        direct(ids, *"abcde")
        found = shown(metrics)
        assert found.tags() == {"a", "b", "c", "other"}
        assert found.value("issued_total", tag="other") == 2
        assert found.total("issued_total") == 5
        assert found.value("held_numbers", tag="other") == 198
        assert found.value("reservations_total", tag="other", reason="direct", result="done") == 2


def test_200_tags_get_labels_unless_it_is_said_otherwise(connect: Connect, measure: Measure) -> None:
    with connect(**ALONE) as ids:
        metrics = measure(ids)
        direct(ids, *(f"t{each}" for each in range(203)))
        assert len(shown(metrics).tags() - {"other"}) == 200
        assert shown(metrics).value("issued_total", tag="other") == 3


def test_a_name_that_a_caller_made_up_becomes_no_label(connect: Connect, measure: Measure) -> None:
    with connect(**ALONE) as ids:
        metrics = measure(ids, tags=2)
        for name in ("4711", "secret-token", "a@b.example"):
            refused(issuer.UnknownTag, "", ids.next, name)
        refused(issuer.InvalidArgument, "", ids.take, "", 1)
        direct(ids, "orders")
        found = shown(metrics)
        assert found.tags() == {"orders", "other"}
        assert found.value("refusals_total", tag="other", code="unknown_tag") == 3
        assert found.value("refusals_total", tag="other", code="invalid_argument") == 1


def test_parts_count_for_their_tag_as_their_names_may_be_users(connect: Connect, measure: Measure) -> None:
    with connect(**ALONE) as ids:
        metrics = measure(ids)
        ids.create("bills", order="trend", keyed=True, format="{key}-{seq}")
        for customer in ("anna@example.org", "bert"):
            for _ in range(3):
                ids.issue("bills", restart_key=customer)
        found = shown(metrics)
        assert found.tags() == {"bills"}
        assert found.value("issued_total", tag="bills") == 6


def test_issuers_may_share_a_registry_or_have_their_own(connect: Connect, measure: Measure) -> None:
    with connect(**ALONE) as one, connect(**ALONE) as two, connect(**ALONE) as other:
        together = [measure(each) for each in (one, two)]
        apart = install(watched(other), CollectorRegistry())  # type: ignore[arg-type]  # of either colour
        for ids, count in ((one, 1), (two, 2), (other, 4)):
            ids.create("a", order="trend", step=100)
            ids.take("a", count)
        assert [shown(each).value("issued_total", tag="a") for each in (*together, apart)] == [3, 3, 4]
        assert shown(together[0]).value("held_numbers", tag="a") == 197
        assert shown(measure(one)).value("issued_total", tag="a") == 3
    found = shown(together[0])
    assert found.value("issued_total", tag="a") == 3, "what was counted stays when the issuers are closed"
    assert found.value("held_numbers", tag="a") is None


def test_what_shows_the_registry_otherwise_shows_the_same(
    connect: Connect, registry: CollectorRegistry, measure: Measure
) -> None:
    with connect(**ALONE) as ids:
        measure(ids)
        direct(ids, "a")
        assert in_registry(registry).value("issued_total", tag="a") == 1
        ids.take("a", 9)
        assert in_registry(registry).value("issued_total", tag="a") == 10


def test_the_argument_or_setting_metrics_counts_in_the_registry_of_prometheus_client(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = in_registry().total("issued_total", tag="by-argument")
    with connect(**ALONE, metrics=True) as ids:
        direct(ids, "by-argument")
        assert in_registry().total("issued_total", tag="by-argument") == before + 1
    with connect(**ALONE) as ids:
        direct(ids, "without")
    monkeypatch.setenv("ISSUER_METRICS", "1")
    with connect(**ALONE) as ids:
        direct(ids, "by-setting")
    found = in_registry()
    assert found.value("issued_total", tag="by-setting")
    assert found.value("issued_total", tag="without") is None


def test_what_cannot_be_used_is_refused(connect: Connect, measure: Measure) -> None:
    taken = CollectorRegistry()
    Counter("issuer_draws", "of somebody else's", registry=taken)
    with connect(**ALONE) as ids:
        refused(ConfigurationError, "0 or more", measure, ids, tags=-1)
        refused(ConfigurationError, "0 or more", measure, ids, tags=True)
        refused(ConfigurationError, "CollectorRegistry", install, watched(ids), "no registry")
        refused(ConfigurationError, "already has some of these names", install, watched(ids), taken)
        assert "issuer_issued" not in generate_latest(taken).decode(), "none of them is left behind"
        assert ids.tags() == []


def test_without_the_extra_it_says_what_to_install_and_importing_the_issuer_loads_none_of_it() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None  # redis-py loads its SDK for itself, where that is installed
import issuer
loaded = {"prometheus_client", "issuer.metrics"} & sys.modules.keys()
assert not loaded, loaded
sys.modules["prometheus_client"] = None
try:
    issuer.connect(redis="none", store="memory://", metrics=True)
except issuer.ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 'pip install ".[metrics]" in a checkout' in done.stdout
