"""A new setting, and one of a tag, is written in as few places as CONTRIBUTING lists: a copy gets it, and passes."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest

from tests.house.packaging.test_wheel import REPO

FOLDERS = ("issuer", "persistence", "lua", "tests", "docs")
FILES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")


@dataclass(frozen=True)
class Place:
    """A place of the list: the file, the text before which the new lines come, and these lines."""

    file: str
    before: str
    lines: str


#: The places of a setting of `connect` with an option of the command line, in the order of the list.
PLACES = (
    Place(
        "issuer/settings.py",
        "    journal: str = _setting(",
        '    example: int = _setting(7, _count(1, 9), "Example, 1..9", connect=True, command="issuer")\n',
    ),
    # The parameter and its description.
    Place("issuer/wiring.py", "    journal: str | os.PathLike", "    example: int | None = None,\n"),
    Place("issuer/wiring.py", "        journal: Path of a file", "        example: Example, 1..9.\n"),
    # Its use.
    Place(
        "issuer/operations/config.py",
        '        return f"<{kind} ',
        '        kind = f"{kind} {self.settings.example}"\n',
    ),
)

_RECORDS = "persistence/issuer_persistence/records.py"
_SCHEMA = "persistence/issuer_persistence/sqlite/schema.py"
_OPTIONS = "issuer/operations/tag_options.py"

#: The places of a setting of a tag that can be changed, in the order of the list.
TAG_PLACES = (
    # The setting and its description.
    Place(_RECORDS, "    description: str = _setting(", "    example: int = _setting(0, range=(0, 9))\n"),
    Place(_RECORDS, "        description: Text for operators", "        example: Example, 0..9.\n"),
    # The column, and the upgrade of older files.
    Place(
        _SCHEMA,
        ")  # fmt: skip\n\n#: Columns that were added",
        """    _added("example", "INTEGER", "typeof(example) = 'integer'", "example <> 0 AND NOT deleted"),\n""",
    ),
    # The option, its description, and that of the edges.
    Place(_OPTIONS, "    description: str | None", "    example: int | None\n"),
    Place(_OPTIONS, "        description: Text for operators", "        example: Example, 0..9. Default: 0.\n"),
    Place(
        _OPTIONS, '    "description": _stored(', '    "example": _stored("whole", "example", "Example. Default: 0"),\n'
    ),
    Place("docs/operate/operations.md", "| `description` |", "| `example` | 0..9 | 0 | an example |\n"),
)


@dataclass(frozen=True)
class Copy:
    """A copy of the sources, in which programs run."""

    folder: Path

    def run(self, *command: str, fails: bool = False, **variables: str) -> str:
        """Run Python in the copy; return its output, and what it wrote to stderr."""
        here = {"PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'persistence'}", "HOME": str(self.folder)}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")}
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={**environment, **here, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def scratch(tmp_path: Path) -> Copy:
    for name in FOLDERS:
        copytree(REPO / name, tmp_path / name, symlinks=True, ignore=ignore_patterns("__pycache__"))
    for name in FILES:
        copy(REPO / name, tmp_path / name)
    return Copy(tmp_path)


def add(scratch: Copy, place: Place) -> None:
    file = scratch.folder / place.file
    before, there, after = file.read_text(encoding="utf-8").partition(place.before)
    assert there, place
    file.write_text(f"{before}{place.lines}{there}{after}", encoding="utf-8")


def test_a_new_setting_is_written_in_as_few_places_as_the_list_has(scratch: Copy) -> None:
    page = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = page.partition("**A new setting**")[2].partition("\n\n**")[0]
    places = re.findall(r"`(issuer/\S+\.py)`", listed)
    assert len({each.file for each in PLACES}) <= 4
    assert [each for each in dict.fromkeys(each.file for each in PLACES) if each not in places] == [PLACES[-1].file]

    for place in PLACES:
        add(scratch, place)
    assert "`python -m tests.reference`" in listed
    scratch.run("-m", "tests.reference")

    # The environment, the file, the command line and the two interfaces know it, and each refuses a wrong value.
    config = ("-m", "issuer", "config", "--json")
    assert json.loads(scratch.run(*config))["example"] == {"value": 7, "source": "default"}
    (scratch.folder / "issuer.toml").write_text("example = 4\n")
    assert json.loads(scratch.run(*config))["example"] == {"value": 4, "source": "issuer.toml"}
    assert json.loads(scratch.run(*config, ISSUER_EXAMPLE="5"))["example"] == {"value": 5, "source": "ISSUER_EXAMPLE"}
    option = ("-m", "issuer", "--example", "6", "config", "--json")
    assert json.loads(scratch.run(*option, ISSUER_EXAMPLE="5"))["example"] == {"value": 6, "source": "argument"}
    assert "example from ISSUER_EXAMPLE: must be 1..9, not 10" in scratch.run(*config, fails=True, ISSUER_EXAMPLE="10")
    for connect in ("connect", "aconnect"):
        program = f'import issuer; print(issuer.{connect}(redis="none", store="memory://", example=8))'
        assert "Issuer 8 redis=None" in scratch.run("-c", program)

    # The pages, and what is tested against the definition.
    row = "| `example` | `ISSUER_EXAMPLE` | `7` | Example, 1..9 |"
    assert row in (scratch.folder / "docs/reference/settings.md").read_text(encoding="utf-8")
    (scratch.folder / "issuer.toml").unlink()
    tests = ("tests/engine/test_settings.py", "tests/house/test_reference.py", "tests/house/test_prose.py")
    scratch.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", *tests)


_PROGRAM = """
import asyncio, issuer
async def main():
    for store in ("memory://", "sqlite:///{connect}.db"):
        ids = issuer.{connect}(redis="none", store=store, scheduler=None)
        made = {await_}ids.create("a", example=3)
        changed = {await_}ids.configure("a", example=4)
        same, other = {await_}ids.configure("a", description="x"), {await_}ids.create("b")
        print(made.example, changed.example, same.example, other.example)
        {await_}ids.close()
asyncio.run(main())
"""


def test_a_new_setting_of_a_tag_is_written_in_as_few_places_as_the_list_has(scratch: Copy) -> None:
    page = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = page.partition("**A setting of a tag**")[2].partition("\n\n**")[0]
    places = [*dict.fromkeys(each.file for each in TAG_PLACES)]
    assert re.findall(r"\d\. (?:The table in )?`(\S+)`", listed) == places
    assert len(places) <= 4

    for place in TAG_PLACES:
        add(scratch, place)
    assert "`python -m tests.reference`" in listed
    scratch.run("-m", "tests.reference")

    # Both interfaces, the command line and HTTP take it, keep it in a store, and refuse a wrong value.
    for connect, await_ in (("connect", ""), ("aconnect", "await ")):
        assert scratch.run("-c", _PROGRAM.format(connect=connect, await_=await_)) == "3 4 4 0\n" * 2
    issuer = ("-m", "issuer", "--redis", "none", "--store", "sqlite:///new.db")
    scratch.run(*issuer, "create", "a", "--example", "5")
    scratch.run(*issuer, "configure", "a", "--example", "6")
    wrong = scratch.run(*issuer, "configure", "a", "--example", "10", fails=True)
    assert "example must be 0..9, not 10" in wrong
    assert json.loads(scratch.run(*issuer, "tags", "--json"))[0]["example"] == 6

    # The pages, and what is tested against the definition.
    text = "Example. Default: 0"
    page = (scratch.folder / "docs/reference/http.md").read_text(encoding="utf-8")
    assert page.count(f"| body | `example` | integer 0..9 | {text} |") == 1
    assert f"{text}. Range: 0..9." in (scratch.folder / "docs/reference/command-line.md").read_text(encoding="utf-8")
    tests = ("unit/test_tag_settings.py", "unit/test_reference.py", "http/test_reference.py", "http/test_document.py")
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", "not soak")
    scratch.run("-m", "pytest", *options, *(f"tests/{each}" for each in tests))
