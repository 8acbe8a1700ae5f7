"""The rows of requirements.toml and the tests that claim to show them, held together.

The suite's claims are read from its source, so that nothing has to be imported or run: a test that is skipped for want
of a server still counts, one that is skipped for ever does not.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS_PER_SOURCE = {"0": 24, "1": 24, "2": 15, "3": 51, "4": 20, "U": 15, "N": 9}

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Claim:
    """One row named by one `covers`; `problem` says why it proves nothing, if it does not."""

    row: str
    where: str
    problem: str = ""


@dataclass(frozen=True)
class Requirements:
    rows: dict[str, str]
    claimed: list[str]

    @classmethod
    def load(cls, text: str) -> "Requirements":
        data = tomllib.loads(text)
        return cls(rows=data["rows"], claimed=data["claimed"])

    def complaints(self, claims: list[Claim]) -> list[str]:
        """Return everything that is wrong between rows, claimed rows and the suite's claims."""
        shown = {claim.row for claim in claims if not claim.problem}
        found = [f"{claim.where}: {claim.problem}" for claim in claims if claim.problem]
        found += [
            f"{claim.where}: there is no row {claim.row}"
            for claim in claims
            if not claim.problem and claim.row not in self.rows
        ]
        found += [f"claimed: there is no row {row}" for row in self.claimed if row not in self.rows]
        found += [f"claimed: {row} is listed twice" for row in set(self.claimed) if self.claimed.count(row) > 1]
        found += [f"claimed: no test shows row {row}: {self.rows[row]}" for row in self._unshown(shown)]
        return found

    def _unshown(self, shown: set[str]) -> list[str]:
        return [row for row in self.claimed if row in self.rows and row not in shown]


class _Claims(ast.NodeVisitor):
    """Collects the claims of one module. A claim counts where pytest would see it: on a test, a class, a parameter."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.claims: list[Claim] = []
        self._placed: set[ast.Call] = set()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._decorated(node, is_test=node.name.startswith("test"))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._decorated(node, is_test=node.name.startswith("test"))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # A class may inherit its tests, and a base class of tests may have any name.
        holds_tests = any(isinstance(part, Function) and part.name.startswith("test") for part in node.body)
        self._decorated(node, is_test=holds_tests or node.name.startswith("Test"))

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assigned(node.targets, node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assigned([node.target], node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "param":
            for keyword in node.keywords:
                if keyword.arg == "marks":
                    self._place(keyword.value)
        if _is_mark(node, "covers") and node not in self._placed:
            self._add(node, "this covers() is on nothing that pytest runs")
        self.generic_visit(node)

    def _decorated(self, node: Function | ast.ClassDef, *, is_test: bool) -> None:
        problem = "" if is_test else f"{node.name} is no test"
        if any(_is_mark(part, "skip") for part in node.decorator_list):
            problem = f"{node.name} is never run"
        for part in node.decorator_list:
            self._place(part, problem)
        self.generic_visit(node)

    def _assigned(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        """`pytestmark = ...` marks a module or class; `TestX = pytest.mark.covers(...)(Machine.TestCase)` a class."""
        names = {part.id if isinstance(part, ast.Name) else getattr(part, "attr", "") for part in targets}
        if value is None:
            return
        if "pytestmark" in names:
            self._place(value)
        elif isinstance(value, ast.Call) and any(name.startswith("Test") for name in names):
            self._place(value.func)

    def _place(self, value: ast.expr, problem: str = "") -> None:
        for part in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
            if isinstance(part, ast.Call) and _is_mark(part, "covers"):
                self._placed.add(part)
                self._add(part, problem)

    def _add(self, node: ast.Call, problem: str) -> None:
        where = f"{self.where}:{node.lineno}"
        if not node.args or node.keywords:
            self.claims.append(Claim("", where, "covers() takes the ids of rows"))
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                self.claims.append(Claim(argument.value, where, problem))
            else:
                self.claims.append(Claim("", where, f"not a literal id: {ast.unparse(argument)}"))


def _is_mark(node: ast.AST, name: str) -> bool:
    """Whether this is `pytest.mark.<name>` or `mark.<name>`, called or not."""
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Attribute) or target.attr != name:
        return False
    return ast.unparse(target.value) in {"pytest.mark", "mark"}


def claims_in(source: str, where: str = "made_up.py") -> list[Claim]:
    collector = _Claims(where)
    collector.visit(ast.parse(source))
    return collector.claims


def claims_of_the_suite(folder: Path = TESTS) -> Iterator[Claim]:
    for path in sorted(folder.rglob("*.py")):
        yield from claims_in(path.read_text(encoding="utf-8"), str(path.relative_to(folder.parent)))


# ------------------------------------------------------------------------------------------------ the suite itself


@pytest.fixture
def requirements() -> Requirements:
    return Requirements.load((TESTS / "requirements.toml").read_text(encoding="utf-8"))


def test_every_claim_of_the_suite_names_a_row_and_every_claimed_row_has_a_test(requirements: Requirements) -> None:
    complaints = requirements.complaints(list(claims_of_the_suite()))
    assert not complaints, "\n".join(complaints)


def test_no_row_has_been_dropped_and_each_is_one_sentence(requirements: Requirements) -> None:
    expected = [f"{source}.{row}" for source, rows in ROWS_PER_SOURCE.items() for row in range(1, rows + 1)]
    assert list(requirements.rows) == expected
    assert all(text.endswith(".") and ". " not in text and "\n" not in text for text in requirements.rows.values())
    assert len(set(requirements.rows.values())) == len(expected)


# ------------------------------------------------------------------------------------------------ the collector


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.covers("0.1")\ndef test_a(): ...',
        '@pytest.mark.covers("0.1")\nasync def test_a(): ...',
        'from pytest import mark\n@mark.covers("0.1")\ndef test_a(): ...',
        'class TestA:\n    @pytest.mark.covers("0.1")\n    def test_a(self): ...',
        'class Contract:\n    @pytest.mark.covers("0.1")\n    def test_a(self): ...',
        '@pytest.mark.covers("0.1")\nclass Contract:\n    def test_a(self): ...',
        '@pytest.mark.covers("0.1")\nclass TestInherited(Contract): ...',
        'pytestmark = pytest.mark.covers("0.1")',
        'pytestmark = [pytest.mark.live, pytest.mark.covers("0.1")]',
        'pytestmark: object = pytest.mark.covers("0.1")',
        'TestMachine.pytestmark = [pytest.mark.covers("0.1")]',
        'TestMachine = pytest.mark.covers("0.1")(Machine.TestCase)',
        'pytest.param(1, marks=pytest.mark.covers("0.1"))',
        'pytest.param(1, marks=[pytest.mark.live, pytest.mark.covers("0.1")])',
    ],
)
def test_a_claim_is_found_where_pytest_sees_it(source: str) -> None:
    assert [(claim.row, claim.problem) for claim in claims_in(source)] == [("0.1", "")]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ('@pytest.mark.covers("0.1")\ndef helper(): ...', "helper is no test"),
        ('@pytest.mark.covers("0.1")\nclass Helper: ...', "Helper is no test"),
        ('@pytest.mark.skip\n@pytest.mark.covers("0.1")\ndef test_a(): ...', "test_a is never run"),
        ('@pytest.mark.covers("0.1")\n@pytest.mark.skip(reason="later")\ndef test_a(): ...', "test_a is never run"),
        ('marked = pytest.mark.covers("0.1")', "this covers() is on nothing that pytest runs"),
        ("@pytest.mark.covers()\ndef test_a(): ...", "covers() takes the ids of rows"),
        ("@pytest.mark.covers(ROW)\ndef test_a(): ...", "not a literal id: ROW"),
        ("@pytest.mark.covers(0.1)\ndef test_a(): ...", "not a literal id: 0.1"),
    ],
)
def test_a_claim_that_proves_nothing_is_a_complaint(source: str, problem: str) -> None:
    claims = claims_in(source)
    assert [claim.problem for claim in claims] == [problem]
    rows = Requirements(rows={"0.1": "A row."}, claimed=["0.1"])
    assert rows.complaints(claims) == [
        f"made_up.py:{_line_of('covers', source)}: {problem}",
        "claimed: no test shows row 0.1: A row.",
    ]


def test_several_rows_and_several_tests_add_up() -> None:
    source = '@pytest.mark.covers("0.1", "0.2")\ndef test_a(): ...\n@pytest.mark.covers("0.2")\ndef test_b(): ...'
    assert [(claim.row, claim.where) for claim in claims_in(source)] == [
        ("0.1", "made_up.py:1"),
        ("0.2", "made_up.py:1"),
        ("0.2", "made_up.py:3"),
    ]


def test_text_that_only_looks_like_a_claim_is_none() -> None:
    assert claims_in('''"""@pytest.mark.covers("0.1")"""\n# pytest.mark.covers("0.1")\nledger.covers("0.1")''') == []


def test_claims_are_read_from_every_folder(tmp_path: Path) -> None:
    deep = tmp_path / "tests" / "lua"
    deep.mkdir(parents=True)
    (deep / "test_draw.py").write_text('@pytest.mark.covers("0.1")\ndef test_a(): ...', encoding="utf-8")
    assert list(claims_of_the_suite(tmp_path / "tests")) == [Claim("0.1", "tests/lua/test_draw.py:1")]


def _line_of(word: str, source: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if word in line)


# ------------------------------------------------------------------------------------------------ the complaints


def test_rows_that_fit_their_claims_raise_no_complaint() -> None:
    rows = Requirements.load('claimed = ["0.1"]\n[rows]\n"0.1" = "A."\n"0.2" = "B."')
    assert rows.complaints([Claim("0.1", "a.py:1")]) == []


@pytest.mark.parametrize(
    ("claimed", "claims", "complaint"),
    [
        ([], [Claim("9.9", "a.py:1")], "a.py:1: there is no row 9.9"),
        (["9.9"], [], "claimed: there is no row 9.9"),
        (["0.1"], [], "claimed: no test shows row 0.1: A."),
        (["0.1", "0.1"], [Claim("0.1", "a.py:1")], "claimed: 0.1 is listed twice"),
    ],
)
def test_what_does_not_fit_is_a_complaint(claimed: list[str], claims: list[Claim], complaint: str) -> None:
    assert Requirements(rows={"0.1": "A."}, claimed=claimed).complaints(claims) == [complaint]
