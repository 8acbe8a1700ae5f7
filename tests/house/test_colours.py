"""Little is written twice, once for threads and once for asyncio: signatures and docstrings are, logic isn't."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ISSUER = Path(__file__).resolve().parents[2] / "issuer"

#: The most lines of code that both colours have. 438 when they were counted first; what is left are calls that pass on
#: a method's arguments, what makes an object of either colour, and the beginnings and ends of tries around an await.
MOST = 153


def pairs() -> list[tuple[Path, Path]]:
    blocking, tasks = ISSUER / "drivers" / "blocking", ISSUER / "drivers" / "aio"
    names = {each.name for each in blocking.glob("*.py")} & {each.name for each in tasks.glob("*.py")}
    drivers = [(blocking / name, tasks / name) for name in sorted(names - {"__init__.py"})]
    shared = [(ISSUER / name / "blocking.py", ISSUER / name / "aio.py") for name in ("api", "engine")]
    return [*shared, *drivers]


def code(file: Path) -> Counter[str]:
    """Count the lines of the bodies of functions, without async and await: as they stand, be it one closing bracket.

    Signatures, docstrings, comments, blank lines and imports aren't counted.
    """
    text = file.read_text(encoding="utf-8")
    counted: set[int] = set()
    for each in ast.walk(ast.parse(text)):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            body = each.body[ast.get_docstring(each) is not None :]
            end = (each.end_lineno or each.lineno) + 1
            begin = body[0].lineno if body else end
            counted -= {*range(each.lineno, begin)}  # of one within another
            counted |= {*range(begin, end)}
    lines = [line.partition("  #")[0].strip() for at, line in enumerate(text.splitlines(), 1) if at in counted]
    return Counter(_colourless(line) for line in lines if line and not line.startswith("#"))


def _colourless(line: str) -> str:
    line = re.sub(r"\b(async|await) |\bAsync(?=[A-Z])|\b(?:a|push_async_)(?=(?:close|callback|next|iter)\b)", "", line)
    return re.sub(r"__a(enter|exit|iter|next)__", r"__\1__", line)


def test_what_both_colours_have_is_written_once() -> None:
    both = {f"{one.parent.name}/{one.name}": (code(one) & code(other)).total() for one, other in pairs()}
    assert len(both) == 6
    assert sum(both.values()) <= MOST, both


def test_what_is_written_twice_is_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text('def f():\n    """Say."""\n    with x as y:  # so\n        y.go()\n    # no\n    return f()\n')
    other.write_text(
        'async def f():\n    """Say."""\n    async with x as y:\n        await y.go()\n    return await g()\n'
    )
    assert code(one) & code(other) == Counter(["with x as y:", "y.go()"])


def shared() -> Iterator[tuple[str, ast.AsyncFunctionDef]]:
    """Yield the coroutine functions that threads run as well, with their modules."""
    for path in sorted(ISSUER.rglob("*.py")):
        name = path.relative_to(ISSUER).as_posix()
        theirs = name == "api/calls/aio.py" or not re.search(r"\b(aio|doors|testing|contrib|chaos|plugins)\b", name)
        if theirs and name not in ("wiring.py", "defaults.py", "threads.py", "engine/scheduler.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.AsyncFunctionDef):
                    yield name, node


def spread(node: ast.AST) -> bool:
    """Whether this awaits a call with * or **."""
    match node:
        case ast.Await(ast.Call(args=args, keywords=named)):
            return any(isinstance(each, ast.Starred) for each in args) or any(each.arg is None for each in named)
    return False


def test_what_threads_run_as_well_begins_at_once_and_is_no_async_generator() -> None:
    """See `finished` and care/results.py: Python would print of one, and give the other to an event loop."""
    functions = [*shared()]
    found = {name for name, _ in functions}
    assert {"drivers/wire.py", "drivers/channel.py", "care/care.py", "care/keeper.py", "engine/calls.py"} <= found
    wrong = {
        (name, node.name)
        for name, node in functions
        if any(isinstance(each, ast.Yield) or spread(each) for each in ast.walk(node))
    }
    assert wrong == set()
    calls = [ast.parse(f"f({given})", mode="eval").body for given in ("*a", "**a", "a, b=a")]
    assert [spread(ast.Await(each)) for each in calls] == [True, True, False]
