"""docs/errors.md has every public error, and its exit code, as they are."""

import re
from pathlib import Path

import issuer
from issuer.cli.exits import _CODES, FAILED
from issuer.errors import IssuerError

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def public() -> dict[str, type[IssuerError]]:
    found = {name: getattr(issuer, name) for name in issuer.__all__}
    return {
        name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, issuer.IssuerError)
    }


def every(kind: type[IssuerError]) -> set[type[IssuerError]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__() if each.__module__ == "issuer.errors"))


def test_every_error_that_users_meet_is_public() -> None:
    assert set(public().values()) == every(IssuerError)
    tree = issuer.errors.__doc__ or ""
    assert {name for name in public() if not re.search(rf"\b{name}\b", tree)} == set()


def test_the_page_has_a_row_for_each_with_what_to_do() -> None:
    rows = ROW.findall(PAGE)
    assert sorted(name for name, *_ in rows) == sorted(public())
    for name, code, says, do in rows:
        error = public()[name]
        expected = next((number for kind, number in _CODES if issubclass(error, kind)), FAILED)
        assert int(code) == expected, name
        assert says.strip()
        assert do.strip()


def test_the_attributes_that_the_page_names_are_there() -> None:
    values = {"retry_after", "differences", "setting", "behind", "plugin", "reason", "path", "line", "drawn", "tag"}
    source = (Path(issuer.errors.__file__ or "")).read_text(encoding="utf-8")
    for name in values & set(re.findall(r"`(?:error\.)?(\w+)`", PAGE)):
        assert re.search(rf"self\.{name}\b|^    {name}:", source, re.MULTILINE), name
