"""Docstrings say what a thing is, at the first reading; those of public calls have an entry for each parameter."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import values
from issuer.metrics import forget, install
from issuer.plugins import AsyncPlugin, Plugin
from issuer.strategies import register
from issuer_persistence.contract import Store

ROOT = Path(__file__).resolve().parents[2]
INDIRECT = re.compile(r"(What|Which|Who|Whose|How|Whether|Where|When|Why)\b")
ENTRY = re.compile(r"^    (\*{0,2}\w+): \S", re.MULTILINE)


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}


BLOCKING, ASYNCIO = methods(issuer.Issuer), methods(issuer.AsyncIssuer)
FUNCTIONS = {
    name: found
    for name in (*issuer.__all__, "next")
    if callable(found := getattr(issuer, name)) and not isinstance(found, type)
}
OTHERS = (Store, AsyncPlugin, Plugin)
CALLS = {
    **FUNCTIONS,
    "forget": forget,
    "install": install,
    "register": register,
    **{f"{kind.__name__}.{name}": each for kind in OTHERS for name, each in methods(kind).items()},
    **{f"Issuer.{name}": each for name, each in BLOCKING.items()},
    **{f"AsyncIssuer.{name}": each for name, each in ASYNCIO.items()},
}
VALUES = [each for name in values.__all__ if dataclasses.is_dataclass(each := getattr(values, name))]


def parameters(call: Callable[..., Any]) -> list[str]:
    stars: dict[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    found = inspect.signature(call).parameters.values()
    return [stars.get(each.kind, "") + each.name for each in found if each.name != "self"]


def section(text: str | None, name: str) -> str:
    """Return what stands in a section of a docstring: up to a blank line, or the end."""
    return (text or "").partition(f"\n{name}:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("name", CALLS)
def test_the_docstring_of_a_public_call_has_an_entry_for_each_parameter_and_no_other(name: str) -> None:
    text = inspect.getdoc(CALLS[name])
    assert text
    assert ENTRY.findall(section(text, "Args")) == parameters(CALLS[name])


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_the_docstring_of_a_value_has_an_entry_for_each_attribute(kind: type) -> None:
    own = [each.name for each in dataclasses.fields(kind) if not hasattr(kind.__base__, each.name)]
    assert set(own) <= set(ENTRY.findall(section(inspect.getdoc(kind), "Attributes"))) <= {*dir(kind), *own}


def test_an_entry_that_is_missing_or_one_too_many_is_found() -> None:
    def call(tag: str, **given: str) -> None:
        """Do it.

        Args:
            tag: Name of the tag, which
                goes on here: too.
            other: Nothing.

        Returns:
            nothing: at all.
        """

    assert parameters(call) == ["tag", "**given"]
    assert ENTRY.findall(section(inspect.getdoc(call), "Args")) == ["tag", "other"]


def test_both_interfaces_have_the_same_calls_and_describe_them_in_the_same_words() -> None:
    assert BLOCKING.keys() == ASYNCIO.keys()
    for name in BLOCKING:
        assert inspect.getdoc(BLOCKING[name]) == inspect.getdoc(ASYNCIO[name])


def test_the_functions_of_the_module_describe_their_parameters_as_the_methods_do() -> None:
    for name in FUNCTIONS.keys() & BLOCKING.keys():
        of_method, of_function = (
            sorted(re.split(r"\n    (?=\*{0,2}\w+: )", section(inspect.getdoc(call), "Args")))
            for call in (BLOCKING[name], FUNCTIONS[name])
        )
        assert [each.split() for each in of_function] == [each.split() for each in of_method]


def test_no_module_or_class_is_introduced_by_an_indirect_question() -> None:
    files = [file for folder in ("issuer", "persistence") for file in (ROOT / folder).rglob("*.py")]
    things = [(file, each) for file in files for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    texts = [(file, ast.get_docstring(each)) for file, each in things if isinstance(each, ast.Module | ast.ClassDef)]
    assert [(file.name, text) for file, text in texts if text and INDIRECT.match(text)] == []
