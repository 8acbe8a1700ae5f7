"""What docs/reference/platforms.md promises of Pythons and systems."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from issuer_persistence.sqlite.store import OLDEST

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "reference" / "platforms.md").read_text("utf-8")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_page_names_the_pythons_that_are_tested() -> None:
    classifier = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    tested = [found[1] for each in PROJECT["classifiers"] if (found := classifier.fullmatch(each))]
    assert f"| CPython {', '.join(tested)} | tested" in PAGE
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_the_page_names_the_oldest_sqlite() -> None:
    assert f"| SQLite | {'.'.join(map(str, OLDEST))} or newer |" in PAGE


def test_windows_is_rejected_at_the_import() -> None:
    done = python("import os, sys; del os.register_at_fork; sys.modules['fcntl'] = None; import issuer")
    assert done.stderr.splitlines()[-1].startswith("ImportError: issuer needs a POSIX system"), done.stderr
    assert "`issuer serve`" in done.stderr


def test_a_python_without_its_gil_draws_a_warning_and_numbers() -> None:
    done = python(
        "import sys; sys._is_gil_enabled = lambda: False; import issuer\n"
        "ids = issuer.connect(redis='none', store='memory://'); ids.create('orders', order='trend')\n"
        "print(ids.next('orders'), ids.next('orders'))"
    )
    assert "RuntimeWarning: issuer is not tested on a free-threaded Python" in done.stderr
    assert done.stdout == "1 2\n"


def test_a_python_with_its_gil_draws_no_warning() -> None:
    done = python("import issuer")
    assert done.stderr == ""
