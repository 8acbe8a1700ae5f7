"""The lists of slow tests and of requirements name what is there, and a run says what they lack."""

import re
from pathlib import Path

import pytest

from tests import programs
from tests.marks import listed, names
from tests.rows import Requirements, RowsShown
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


ROWS_PER_SOURCE = {"0": 24, "1": 24, "2": 15, "3": 51, "4": 20, "U": 29, "N": 15}


def test_no_row_has_been_dropped_and_each_is_one_sentence() -> None:
    requirements = Requirements.load((Path(__file__).parents[1] / "requirements.toml").read_text(encoding="utf-8"))
    expected = [f"{source}.{row}" for source, rows in ROWS_PER_SOURCE.items() for row in range(1, rows + 1)]
    assert list(requirements.rows) == expected
    assert all(text.endswith(".") and ". " not in text and "\n" not in text for text in requirements.rows.values())
    assert len(set(requirements.rows.values())) == len(expected)
    claims = [*requirements.claimed, *requirements.soak]
    assert len(set(claims)) == len(claims)
    assert set(claims) <= set(expected)


def report(outcome: str, *rows: str, when: str = "call") -> pytest.TestReport:
    location, properties = ("a.py", 1, "test_a"), [("covers", row) for row in rows]
    return pytest.TestReport("a.py::test_a", location, {}, outcome, None, when, user_properties=properties)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reports", "complaints"),
    [
        ([report("passed", "0.1")], []),
        ([report("passed", "0.1", when="setup"), report("failed", "0.1")], ["row 0.1 is claimed"]),
        ([report("skipped", "0.1", when="setup")], ["row 0.1 is claimed"]),
        ([report("passed", "0.1", "9.9")], ["a.py::test_a covers 9.9, which is no row"]),
        ([report("passed", "0.1", "0.2")], ["row 0.2 stands among those that only make soak shows"]),
    ],
    ids=["shown", "failed", "skipped", "no row", "shown in make test"],
)
def test_rows_are_shown_by_tests_that_ran_and_passed(reports: list[pytest.TestReport], complaints: list[str]) -> None:
    seen = RowsShown()
    for each in reports:
        seen.pytest_runtest_logreport(each)
    found = Requirements({"0.1": "A.", "0.2": "B."}, ["0.1"], ["0.2"]).complaints(seen.covered, seen.shown)
    assert [got.startswith(want) for got, want in zip(found, complaints, strict=True)] == [True] * len(complaints)


def test_a_test_that_a_run_leaves_to_make_test_shows_its_rows_there(request: pytest.FixtureRequest) -> None:
    request.node.add_marker(pytest.mark.covers("0.1"))
    seen = RowsShown()
    seen.pytest_deselected([request.node])
    request.node.add_marker(pytest.mark.slow)
    seen.pytest_deselected([request.node])
    assert seen.left == [("0.1", request.node.nodeid)]
