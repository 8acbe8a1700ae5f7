"""Generated modules: `make generate` writes them, `make lint` compares.

They have no logic. Each function only passes its arguments on: a method of Issuer to the coroutine of the same name,
and a function of the module `issuer` to the method of the default issuer. The signatures and docstrings are copied, so
that an editor shows them and mypy checks calls.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]

#: The generated modules, below issuer/, and their sources.
GENERATED = {
    "api/calls/blocking.py": ("api/calls/aio.py",),
    "functions.py": ("api/blocking.py", "api/calls/blocking.py"),
}

#: Their docstrings.
TOLD = {
    "api/calls/blocking.py": "The methods of an issuer that are the same for threads and for asyncio, for threads.",
    "functions.py": "Functions that call the methods of the default issuer.",
}

#: The module's functions that call a method of the default issuer.
FUNCTIONS = ("next", "take", "issue", "peek", "decode", "reserve", "stream")

_METHODS = '''
class IssuerCalls(AnyIssuer):
    """The methods of an Issuer that wait for the same as those of an AsyncIssuer."""

    def __init__(self, engine: EngineCalls[Any]) -> None:
        super().__init__(engine)
        self._calls = AsyncIssuerCalls(engine)
'''


def methods(nodes: list[ast.stmt]) -> str:
    """Return the text of the blocking methods that run these coroutine functions of AsyncIssuerCalls."""
    parts = [*_imports(nodes), "from issuer.api.calls.aio import AsyncIssuerCalls"]
    parts += ["from issuer.engine.calls import EngineCalls", "from issuer.threads import finished", _METHODS]
    for node in _defined(nodes, ast.AsyncFunctionDef):
        docstring = re.sub(r"\bAsync(?=[A-Z])", "", ast.get_docstring(node) or "")
        head = f"def {node.name}({ast.unparse(node.args)}) -> {_returned(node)}:"
        call = f"return finished(lambda: {_passed_on(node)})"
        parts += [_indented(head, "    "), _indented(f'"""{docstring}\n"""\n{call}', " " * 8)]
    return "\n".join(parts)


def _passed_on(node: ast.AsyncFunctionDef) -> str:
    """Return the call of the coroutine function with the arguments of the method.

    Python may run a signal handler right after a call with `**`, which `finished` forbids. So a method with such a
    parameter makes the same call as its source.
    """
    if node.args.kwarg:
        match node.body[1:]:
            case [ast.Return(value=ast.Await(value=call))]:
                return ast.unparse(call)
        raise ValueError(f"{node.name} has a parameter with **, and not only a docstring and `return await ...`")
    passed = [each.arg for each in node.args.args[1:]] + [f"{each.arg}={each.arg}" for each in node.args.kwonlyargs]
    return f"self._calls.{node.name}({', '.join(passed)})"


def functions(nodes: list[ast.stmt]) -> str:
    """Return the text of the functions that call these methods, of the default issuer."""
    defined = {node.name: node for node in _defined(nodes, ast.FunctionDef)}
    return "\n".join(["import issuer", *_imports(nodes), *(_function(defined[name]) for name in FUNCTIONS)])


def _function(method: ast.FunctionDef) -> str:
    """Return a function with the method's parameters. All that have a default are keyword-only."""
    given = method.args
    tag, *others = given.args[1 : len(given.args) - len(given.defaults)]
    defaults = [*zip(given.args[len(given.args) - len(given.defaults) :], given.defaults, strict=True)]
    defaults += [(one, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
    named = [f"{ast.unparse(one)} = {ast.unparse(value)}" for one, value in defaults]
    parameters = ", ".join([ast.unparse(one) for one in (tag, *others)] + ["*"] + named)
    passed = ", ".join([one.arg for one in (tag, *others)] + [f"{one.arg}={one.arg}" for one, _ in defaults])
    summary, arguments = _told(ast.get_docstring(method) or "")
    text = f"{summary}\n\nUses the default issuer. Details and errors: see Issuer.{method.name}.\n\n{arguments}"
    head = f"def {method.name}({parameters}) -> {_returned(method)}:"
    call = f"return issuer.default().{method.name}({passed})"
    return "\n".join([head, _indented(f'"""{text}\n"""\n{call}', "    "), ""])


def _told(docstring: str) -> tuple[str, str]:
    """Return the first line of a method's docstring, and its section about arguments."""
    found = re.search(r"^Args:\n(?:    .*\n?)+", docstring, re.MULTILINE)
    return docstring.splitlines()[0], found[0].rstrip() if found else ""


def _imports(nodes: Iterable[ast.stmt]) -> list[str]:
    every = [inner for node in nodes for inner in (node.body if isinstance(node, ast.If) else [node])]
    found = [node for node in every if isinstance(node, ast.Import | ast.ImportFrom)]
    return [ast.unparse(node) for node in found if getattr(node, "module", "") != "__future__"]


def _defined(nodes: Iterable[ast.stmt], kind: type[T]) -> list[T]:
    """Return the methods of that kind that the classes of a module define."""
    return [node for each in nodes if isinstance(each, ast.ClassDef) for node in each.body if isinstance(node, kind)]


def _returned(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return ast.unparse(node.returns) if node.returns else "None"


def _indented(text: str, by: str) -> str:
    return "\n".join(f"{by}{line}".rstrip() for line in text.splitlines())


def _formatted(name: str, text: str) -> str:
    """Return the text of the module as ruff would write it, below a line that names its sources."""
    named = " and ".join(f"issuer/{source}" for source in GENERATED[name])
    head = f"# Generated by `make generate` from {named}: do not edit."
    text = f'{head}\n"""{TOLD[name]}"""\nfrom __future__ import annotations\n{text}\n'
    fixes = ["check", "--select=I,UP,F401,TC001,TC002,TC003", "--fix-only", "--unsafe-fixes", "--quiet"]
    for command in (fixes, ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename=issuer/generated.py", "-"]
        text = subprocess.run(ruff, cwd=ROOT, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    """Write each module; with --check only compare, and return 1 if one is stale."""
    stale = []
    for name, sources in GENERATED.items():
        nodes = [node for each in sources for node in ast.parse((ROOT / "issuer" / each).read_text("utf-8")).body]
        text = _formatted(name, methods(nodes) if name.startswith("api") else functions(nodes))
        there = ROOT / "issuer" / name
        if not there.exists() or there.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                there.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"stale: {', '.join(stale)}: run `make generate`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
