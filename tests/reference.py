"""What is generated from the code: pages of docs/reference, and the copies of `connect`'s parameters in `aconnect`.

`python -m tests.reference` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from issuer.cli import main
from issuer.gateway.commands import NAMES, folder
from issuer.settings import DEFINITIONS, REDIS_VARIABLE, STORE_VARIABLES, SettingDefinition
from tests.doors.http.routes_page import completed

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"

#: The commands by name, in the order of the help.
COMMANDS = {
    name: command
    for name in main.list_commands(click.Context(main))
    if (command := main.get_command(click.Context(main), name)) is not None
}

#: What to do if a page isn't what it would be.
REMEDY = "run `.venv/bin/python -m tests.reference`"

#: What click uses of a terminal of 80 columns.
WIDTH = 78

#: What follows the name of the variable of a setting that has others as well.
_MORE_VARIABLES = {
    "redis_url": f"; `{REDIS_VARIABLE}` if a store is configured",
    "store_url": "".join(f", `{each}`" for each in STORE_VARIABLES),
}

#: A region of a page that is generated: from the line that begins so to the next empty line.
_TABLES = {
    "settings.md": ("| file key |", "\n\n"),
    "scripts.md": ("| script |", "\n\n"),
}
_COMMANDS = "## Commands\n"

WIRING = Path(__file__).resolve().parents[1] / "issuer" / "wiring.py"
#: Parameters that `aconnect` has in its own way.
_OWN = ("redis", "plugins", "scheduler")
#: The signature and the list in the docstring, each with the pattern of an entry.
_PARAMETERS = (
    (r"(?<=\*,\n).*?(?=\n\) ->)", r"^(    (\w+): .*)"),
    (r"(?<=Args:\n).*?(?=\n\n    Raises:)", r"^(        (\w+): .*(?:\n {12}.*)*)"),
)


def pages() -> dict[Path, str]:
    """Return each page with what it should be."""
    found = {}
    for name, (first, end) in _TABLES.items():
        text = (FOLDER / name).read_text(encoding="utf-8")
        before, heading, rest = text.partition(first)
        rest = rest[rest.index(end) :]
        found[FOLDER / name] = f"{before}{heading}{_tables()[name].removeprefix(first)}{rest}"
    page = FOLDER / "http.md"
    found[page] = completed(page.read_text(encoding="utf-8"))
    page = FOLDER / "command-line.md"
    found[page] = page.read_text(encoding="utf-8").partition(_COMMANDS)[0] + _COMMANDS + _commands()
    return {**found, WIRING: _wiring()}


def _wiring() -> str:
    """Return the text of wiring.py in which `aconnect` has the parameters of `connect`, and their descriptions."""
    text = WIRING.read_text(encoding="utf-8")
    before, blocking, awaited = re.split(r"^(?=def a?connect\()", text, flags=re.MULTILINE)
    for block, entry in _PARAMETERS:
        here, there = (re.search(block, each, re.DOTALL) for each in (blocking, awaited))
        assert here, block
        assert there, block
        copied, own = (
            {name: body for body, name in re.findall(entry, each[0], re.MULTILINE)} for each in (here, there)
        )
        copied |= {name: own[name] for name in _OWN}
        awaited = awaited.replace(there[0], "\n".join(copied.values()))
    return before + blocking + awaited


def _tables() -> dict[str, str]:
    return {
        "settings.md": _table(
            ("file key", "environment", "default", "meaning"), [_setting(each) for each in DEFINITIONS.values()]
        ),
        "scripts.md": _table(("script", "purpose"), [(f"`{name}`", _purpose(name)) for name in NAMES]),
    }


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- |", "|---|").replace(" --- |", "---|")


def _setting(each: SettingDefinition) -> tuple[str, ...]:
    variable = f"`{each.variable}`{_MORE_VARIABLES.get(each.name, '')}"
    return f"`{each.name}`", variable, each.shown_default, each.help


def _purpose(name: str) -> str:
    """Return what a script does, as the table in the README of the scripts has it."""
    row = re.search(rf"^\| `{name}` \| (.*?) \|", (folder() / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert row, name
    return row[1]


def _commands() -> str:
    named = [("issuer", main), *((f"issuer {name}", command) for name, command in COMMANDS.items())]
    return "".join(f"\n### {path}\n\n```text\n{_help(path, command)}\n```\n" for path, command in named)


def _help(path: str, command: click.Command) -> str:
    settings = {**main.context_settings, "terminal_width": WIDTH}
    return command.get_help(click.Context(command, info_name=path, **settings)).rstrip()


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
