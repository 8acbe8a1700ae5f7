"""Pages of the docs agree with the code: errors and their advice, defaults of snowflake tags, members of issuers."""

import re
from pathlib import Path

import pytest

import issuer
from issuer.advice import ADVICE, command_line, filled, python
from issuer.cli.exits import _CODES, FAILED
from issuer.errors import IssuerError
from issuer.strategies import Layout
from issuer.strategies.snowflake import stored
from issuer.strategies.snowflake.machines import LEASE, MARGIN
from issuer.strategies.snowflake.strategy import MAX_WAIT, OPTIONS, SOURCES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE, TEXT = ((DOCS / name).read_text(encoding="utf-8") for name in ("reference/errors.md", "guide/snowflake.md"))
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def public() -> dict[str, type[IssuerError]]:
    found = {name: getattr(issuer, name) for name in issuer.__all__}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, IssuerError)}


def every(kind: type[IssuerError]) -> set[type[IssuerError]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__() if each.__module__ == "issuer.errors"))


def test_every_error_that_users_meet_is_public() -> None:
    assert set(public().values()) == every(IssuerError)


def test_the_page_has_a_row_for_each_with_its_code_what_it_carries_and_what_to_do() -> None:
    rows = ROW.findall(PAGE)
    assert sorted(name for _, name, *_ in rows) == sorted(public())
    assert len({code for code, *_ in rows}) == len(rows)
    for code, name, exits, says, do in rows:
        error = public()[name]
        assert error.code == code
        expected = next((number for kind, number in _CODES if issubclass(error, kind)), FAILED)
        assert int(exits) == expected, name
        assert says.strip()
        assert do.strip()
    assert "`UsageError` with the code `usage`" in PAGE


def test_the_page_has_what_each_error_advises_in_the_words_of_python_and_of_the_command_line() -> None:
    cells = {code: do for code, _, _, _, do in ROW.findall(PAGE)}
    for name, advice in ADVICE.items():
        for call in re.findall(r"{do:.*?}", advice):
            for words in (python, command_line):
                typed = filled(call, words, "orders").strip("`")
                assert f"`{typed}`" in cells[name.partition(".")[0]], (name, typed)


def test_every_option_stands_in_the_table_with_its_default() -> None:
    table = TEXT.partition("| option |")[2].partition("\n\n")[0]
    rows = {line.split("|")[1]: line for line in table.splitlines()[2:]}
    assert {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} == set(OPTIONS)
    assert f"| {LEASE:g}; {stored.LEASE:g} with `store` |" in rows[" `lease` "]
    assert f"| {MAX_WAIT} |" in rows[" `max_wait` "]
    assert all(f"`{source}`" in rows[" `machine` "] for source in SOURCES)
    assert f"until {Layout().exhausted:%Y-%m-%d}" in rows[" `time_bits` "]
    assert f"{MARGIN:g} s" in TEXT


@pytest.mark.parametrize(("page", "kind"), [("issuer", issuer.Issuer), ("asyncio", issuer.AsyncIssuer)])
def test_the_page_of_an_interface_lists_each_public_member(page: str, kind: type) -> None:
    text = (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")
    listed = re.findall(r"\w+", text.partition("members: [")[2].partition("]")[0])
    assert sorted(listed) == sorted(name for name in dir(kind) if not name.startswith("_"))
