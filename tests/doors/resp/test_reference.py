"""docs/reference/redis-protocol.md has each command, each first word of an error, and the limits: no more."""

import ast
import re
from pathlib import Path

from issuer.doors.budget import BYTES_MOST, PROGRESS, STRANGERS_SHARE
from issuer.doors.resp.commands import READING, SPECS
from issuer.doors.resp.connection import REFUSALS_MOST, UNREAD_MOST
from issuer.doors.resp.parsing import (
    BULK_MOST,
    ELEMENTS_MOST,
    LINE_MOST,
    REQUEST_MOST,
    STRANGERS_BYTES,
    STRANGERS_ELEMENTS,
)
from issuer.doors.resp.replies import WORDS
from issuer.doors.resp.server import IDLE
from issuer.doors.resp.transaction import COMMANDS_MOST
from issuer.doors.server.sockets import CONNECTIONS_MOST

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "redis-protocol.md").read_text(encoding="utf-8")


def rows_below(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    lines = PAGE.partition(f"\n## {heading}\n")[2].partition("|\n\n")[0].splitlines()
    table = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in lines if line.startswith("| ")]
    return table[1:]


def test_the_page_has_each_command_with_its_arguments() -> None:
    typed = [cells[0].strip("`").replace("\\|", "|") for cells in rows_below("Commands")]
    assert [line.split()[0] for line in typed] == list(SPECS)
    for line in typed:
        name, _, arguments = line.partition(" ")
        spec = SPECS[name]
        required = re.sub(r"\[.*\]", "", arguments).split()
        # CONFIG has one subcommand here, and it takes a name.
        assert len(required) == spec.least + (name == "CONFIG"), line
        assert ("[" in line) == (spec.most != spec.least), line
        if spec.most is not None:
            assert len(arguments.replace("[", "").replace("]", "").split()) == spec.most, line


def test_the_page_has_the_scopes_that_commands_need() -> None:
    words = {cells[0]: re.findall(r"`(\w+)`", cells[1]) for cells in rows_below("Authentication")}
    assert words == {"INCR, INCRBY": ["issue"], "GET, EXISTS, TYPE": list(READING), "all others": []}
    early = re.search(r"every command needs a token, except (.*?)\.", " ".join(PAGE.split()))
    assert early
    assert sorted(re.findall(r"[A-Z]+", early[1])) == sorted(name for name, spec in SPECS.items() if spec.early)


def test_the_page_has_each_first_word_of_an_error_reply() -> None:
    found = {word for _, word in WORDS}
    for file in (ROOT / "issuer" / "doors" / "resp").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "error":
                texts = [each for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)]
                found |= {str(each.value).split()[0] for each in texts[:1] if re.match(r"[A-Z]{3,} ", str(each.value))}
    assert {cells[0].strip("`") for cells in rows_below("Errors")} == found | {"any other"}


def test_the_page_has_the_limits() -> None:
    kilo, mega = 1024, 1024**2
    limits = {cells[0]: cells[1] for cells in rows_below("Limits")}
    assert limits["argument"] == f"{BULK_MOST // kilo} KB"
    assert limits["line"] == f"{LINE_MOST // kilo} KB"
    assert limits["request"] == f"{REQUEST_MOST // mega} MB and {ELEMENTS_MOST} arguments"
    assert limits["transaction"] == f"{REQUEST_MOST // mega} MB and {COMMANDS_MOST // 1000} 000 commands"
    assert limits["replies that are not written yet, or not read"] == f"{UNREAD_MOST // kilo} KB"
    assert limits["idle time of a client"] == f"{IDLE:g} s"
    before = f"{STRANGERS_ELEMENTS} arguments, {STRANGERS_BYTES // kilo} KB each"
    assert limits["arguments before authentication, if tokens are required"] == before
    assert limits["time until authentication, if tokens are required"] == f"{PROGRESS:g} s"
    assert limits["time to complete a command, and to read replies"] == f"{PROGRESS:g} s"
    assert limits["commands without a valid token"] == f"{REFUSALS_MOST}"
    share = f"{STRANGERS_SHARE:.0%} of them before authentication"
    assert limits["bytes that all clients of a worker make it hold"] == f"{BYTES_MOST // mega} MB, {share}"
    assert limits["clients of a worker"].startswith(f"{CONNECTIONS_MOST * 4 // 5}, or fewer")
