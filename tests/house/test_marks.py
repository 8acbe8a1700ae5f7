"""The list of slow tests names tests that are there, and a run that measures says what it lacks."""

import re
from pathlib import Path

import pytest

from tests import programs
from tests.marks import listed, names
from tests.times import LEAST, MOST, Times, spent

REPOSITORY = Path(__file__).resolve().parents[2]


def test_each_line_of_the_list_names_a_test_once_and_in_order() -> None:
    assert listed() == sorted(set(listed()))
    for line in listed():
        file, *rest = line.partition("[")[0].split("::")
        source = (REPOSITORY / file).read_text(encoding="utf-8")
        assert all(re.search(rf"^ *(async def|def|class) {name}\b", source, re.MULTILINE) for name in rest), line


def test_a_line_names_a_file_a_function_or_one_of_its_parameters() -> None:
    assert names("tests/a.py::test_b[c::d[e]]") == {"tests/a.py::test_b[c::d[e]]", "tests/a.py::test_b", "tests/a.py"}


@pytest.mark.parametrize(
    ("test", "seconds", "complaint"),
    [
        ("tests/a.py::test_b", MOST + 0.1, "tests/a.py::test_b took 3.1 s of processor time: add it to"),
        ("tests/a.py::test_b", MOST - 0.1, ""),
        (listed()[0], LEAST - 0.1, "tests/slow.txt: .* remove the line"),
        (listed()[0], LEAST + 0.1, ""),
    ],
    ids=["not marked", "almost", "needless", "needed"],
)
def test_a_line_that_is_missing_or_needless_is_told(test: str, seconds: float, complaint: str) -> None:
    times = Times()
    times.measured[test] = seconds
    (found,) = times.complaints() or [""]
    assert re.match(complaint or "$", found)


def test_the_time_of_programs_is_in_the_time_of_a_test() -> None:
    began = spent()
    programs.run("-c", "import time\nwhile time.process_time() < 0.5: pass")
    assert spent() - began > 0.4
