"""The report of `make soak` fits a screen, and tells how to run each failure again."""

from tests.soak.report import Run


def test_it_counts_by_folder_and_names_the_command_for_each_failure() -> None:
    run = Run(seed=123)
    run.ended("tests/lua/test_next.py::test_draws[valkey-9]", {"passed"}, 2.0)
    run.ended("tests/lua/test_next.py::test_draws[redis]", {"passed", "failed"}, 3.4)
    run.ended("tests/unit/numbers/test_x.py::TestY::test_of[a $5]", {"failed"}, 0.0)
    run.ended("tests/unit/numbers/test_x.py::test_absent", {"skipped"}, 0.0)
    run.commanded("python -m tests.load --seconds 120", 0, 125.0)
    run.commanded("python -m tests.chaos --times 2 --out build/a-long-name-of-a-file.json", 4, 600.0)
    report = [*run.lines(754.2)]
    table = [line.rsplit(maxsplit=5) for line in report if line[-1].isdigit() and not line.startswith("seed")]
    assert table == [
        ["python -m tests.chaos --times 2 --out build/a-long-name", "1", "0", "1", "0", "600"],
        ["python -m tests.load --seconds 120", "1", "1", "0", "0", "125"],
        ["tests/lua", "2", "1", "1", "0", "5"],
        ["tests/unit/numbers", "2", "0", "1", "1", "0"],
        ["all", "6", "2", "3", "1", "730"],
    ]
    assert "seed 123; 12 min 34 s in all. S: seconds of all workers." in report
    assert report[report.index("To run what failed again:") + 1 :] == [
        "make soak SEED=123 K='tests/lua/test_next.py::test_draws[redis]'",
        """make soak SEED=123 K=''"'"'tests/unit/numbers/test_x.py::TestY::test_of[a $$5]'"'"''""",
        "ISSUER_TEST_SEED=123 .venv/bin/python -m tests.chaos --times 2 --out build/a-long-name-of-a-file.json",
    ]
    assert all(len(line) <= 100 for line in report[:7])


def test_where_nothing_failed_there_is_nothing_to_run_again() -> None:
    run = Run(seed=5)
    run.ended("tests/lua/test_next.py::test_draws", {"passed"}, 1.0)
    assert [*run.lines(61)][-1].startswith("seed 5; 1 min 1 s in all.")
