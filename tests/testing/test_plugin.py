"""The plugin of pytest, in runs of their own: with xdist, forks, asyncio and unittest, and without its fixtures."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("production"), pytest.mark.covers("U.22")]

TESTS = """
import multiprocessing
import os
import threading
import unittest
import warnings

import pytest


@pytest.mark.parametrize("run", range(4))
def test_each_has_its_own(issuer, run):
    issuer.create("orders")
    assert [issuer.next("orders"), issuer.next("orders")] == [1, 2]


def test_the_default_is_the_fixture(issuer, issuer_double):
    import issuer as module

    issuer.create("orders")
    assert module.next("orders") == 1
    assert module.default() is issuer is issuer_double.ids


def draw(_):
    import issuer

    return issuer.next("orders")


def test_forked_processes(issuer):
    issuer.create("orders", step=3)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert sorted(pool.map(draw, range(30), chunksize=1)) == list(range(1, 31))


def test_spawned_processes(issuer):
    issuer.create("orders")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(draw, range(3)) == [1, 2, 3]


def test_threads(issuer):
    issuer.create("orders")
    numbers = []
    threads = [threading.Thread(target=lambda: numbers.append(issuer.next("orders"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 9))


@pytest.mark.usefixtures("issuer")
class TestCase(unittest.TestCase):
    def test_a_test_case(self):
        import issuer

        issuer.default().create("orders")
        assert issuer.next("orders") == 1


def test_a_coroutine(issuer_double):
    import asyncio

    import issuer

    async def main():
        async with issuer_double.aconnect() as ids:
            await ids.create("orders")
            return [await ids.next("orders"), await issuer.adefault().next("orders")]

    assert asyncio.run(main()) == [1, 2]


def test_a_fault(issuer, issuer_double, caplog):
    issuer.create("orders", step=1)
    assert issuer.next("orders") == 1
    issuer_double.store_away(calls=3)
    assert issuer.next("orders") >= 2
"""


def pytest_run(folder: Path, *words: str, tests: str = TESTS) -> str:
    (folder / "test_it.py").write_text(tests)
    strict = ("-W", "error", "-W", "error::ResourceWarning", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *strict, *words, folder / "test_it.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tests_of_many_kinds_use_the_fixture(tmp_path: Path) -> None:
    assert "11 passed" in pytest_run(tmp_path)


def test_each_process_of_xdist_has_its_own_server(tmp_path: Path) -> None:
    assert "11 passed" in pytest_run(tmp_path, "-n", "2")


def test_a_run_without_the_fixture_imports_nothing_of_it(tmp_path: Path) -> None:
    tests = """
import sys

def test_nothing():
    assert "pytest_issuer" in sys.modules
    assert [name for name in sys.modules if name.partition(".")[0] in ("issuer", "issuer_persistence", "redis")] == []
"""
    assert "1 passed" in pytest_run(tmp_path, tests=tests)


def test_the_tests_of_its_page_pass(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/guide/testing.md"
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    backend = "import pytest\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n\n"
    tests = backend + "\n\n".join(blocks)
    assert "6 passed" in pytest_run(tmp_path, "-o", "anyio_mode=auto", tests=tests)
