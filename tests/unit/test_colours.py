"""Little is written twice, once for threads and once for asyncio: signatures and docstrings are, logic isn't."""

import ast
import re
from collections import Counter
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
