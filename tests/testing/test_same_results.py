"""What tests of the public interface show on other servers and stores, the double shows too.

Chosen are the tests of these modules that use nothing but issuers, and the clock of Redis.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import pytest

from issuer import Issuer
from issuer.testing import Double
from tests.colours import Connect
from tests.core.conftest import daily  # noqa: F401 - a fixture
from tests.days import VIENNA
from tests.engine.conftest import direct, ids  # noqa: F401 - fixtures
from tests.schemes import KEYS, Make

pytestmark = [pytest.mark.live, pytest.mark.colours("blocking")]

ROOMS = {"core": ("adapt", "limits", "periods", "tags"), "engine": ("calls", "refusals"), "numbers": ("scheme_draws",)}
MODULES = [import_module(f"tests.{room}.test_{name}") for room, names in ROOMS.items() for name in names]
MAKERS = {"daily", "ids", "make", "make_live"}
FIXTURES = MAKERS | {"at", "caplog", "connect", "direct"}


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as made:
        yield made


@pytest.fixture
def make(double: Double, connect: Connect) -> Iterator[Make]:
    with ExitStack() as ends:

        def one(**settings: Any) -> Issuer:
            common = {"redis": double.redis_url, "store": double.store_url, "scheduler": None, "timeout": 60}
            return ends.enter_context(connect(**{"keys": KEYS, **common, **settings}))

        yield one


@pytest.fixture
def make_live(make: Make) -> Make:
    return make


@pytest.fixture
def at(double: Double) -> Callable[[str], None]:
    return lambda moment: double.clock.set(datetime.fromisoformat(moment).replace(tzinfo=VIENNA))


def public_ones(module: ModuleType) -> Iterator[FunctionType]:
    """Find the tests that use no fixture but the ones above, and nothing inside the issuer."""
    for name, test in vars(module).items():
        if name.startswith("test_") and isinstance(test, FunctionType):
            marks = getattr(test, "pytestmark", [])
            given = ",".join(str(mark.args[0]) for mark in marks if mark.name == "parametrize").replace(" ", "")
            wanted = inspect.signature(test).parameters.keys() - set(given.split(","))
            if wanted <= FIXTURES and wanted & MAKERS and ".engine" not in inspect.getsource(test):
                yield test


CHOSEN = {test.__name__: test for module in MODULES for test in public_ones(module)}
globals().update(CHOSEN)


def test_most_of_them_are_chosen() -> None:
    assert len(CHOSEN) >= 40
