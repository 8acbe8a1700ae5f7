"""The rows of requirements.toml are whole, and a run that doesn't show what is claimed is red."""

from pathlib import Path

import pytest

from tests.rows import Requirements, RowsShown

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
