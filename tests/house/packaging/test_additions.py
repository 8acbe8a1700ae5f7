"""A part that is added as CONTRIBUTING says: a copy of the sources gets it, and passes its checks."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from typing import NamedTuple

import pytest

from tests.house.packaging.test_wheel import REPO

pytestmark = pytest.mark.live

FOLDERS = ("issuer", "persistence", "lua", "tests", "docs")
FILES = ("pyproject.toml", "hatch_version.py", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CONTRIBUTING = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
GENERATED = "tests/house/test_docs.py::test_the_page_is_what_its_generator_makes_of_the_code"


class Scratch:
    """A copy of the sources, in which programs run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in FOLDERS:
            copytree(REPO / name, folder / name, symlinks=True, ignore=ignore_patterns("__pycache__"))
        for name in FILES:
            copy(REPO / name, folder / name)

    def text(self, path: str) -> str:
        return (self.folder / path).read_text(encoding="utf-8")

    def replace(self, path: str, old: str, new: str) -> None:
        assert self.text(path).count(old) == 1, (path, old)
        (self.folder / path).write_text(self.text(path).replace(old, new), encoding="utf-8")

    def append(self, path: str, text: str) -> None:
        with (self.folder / path).open("a", encoding="utf-8") as file:
            file.write(text)

    def run(self, *words: str, fails: bool = False, **variables: str) -> str:
        """Run Python in the copy; return what it printed, and what it wrote to stderr if it has failed."""
        path = os.pathsep.join(map(str, (self.folder, self.folder / "persistence")))
        here = {"PYTHONPATH": path, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")}
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env={**clean, **here, **variables},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert bool(done.returncode) is fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def lint(self) -> None:
        program = "from importlinter.cli import lint_imports_command as run; run()"
        assert "0 broken" in self.run("-c", program, "--no-cache")

    def check(self, *tests: str) -> None:
        """Write the generated pages; run the linter of imports and the tests."""
        self.run("-m", "tests.reference")
        self.lint()
        self.run(*PYTEST, "-m", "not live and not soak", GENERATED, *tests)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(tmp_path / "copy")


COMMAND = '''"""`issuer say-hello`."""

import click

from issuer.terminal import show

SECTION = "Tools"


@click.command(
    short_help="Greet a person.",
    epilog="""\\b
    Examples:
      issuer say-hello Ada
      issuer say-hello Bob
    """,
)
@click.argument("name")
def say_hello(name: str) -> None:
    """Greet NAME."""
    show(f"Hello, {name}.")
'''


def test_a_command_is_one_file(scratch: Scratch) -> None:
    (scratch.folder / "issuer/cli/commands/say_hello.py").write_text(COMMAND, encoding="utf-8")
    assert scratch.run("-m", "issuer", "say-hello", "Ada") == "Hello, Ada.\n"
    assert "  say-hello  Greet a person.\n" in scratch.run("-m", "issuer", "--help")
    scratch.check()
    assert "### issuer say-hello\n" in scratch.text("docs/reference/command-line.md")


HANDLER = '''

async def age(service: Service, call: Request) -> Reply:
    """Show the time since the tag was created."""
    found = await service.ids.inspect(call.tag, timeout=call.timeout)
    return shown({"status": "ok", "created": found.store.created}, as_string=call.as_string)
'''
ROW = """    Route("GET", f"{_OF}/age", "age", "Show the time when the tag was created.", tags.age, READ, "Tag",
          query={"unit": member(str, "Unit of the time")}),
    Route("PATCH", _OF,"""
ASKED = """
from tests.doors.http.doors import open_door
from tests.waiting import run

async def main() -> None:
    async with open_door() as door:
        await door.ids.create("a")
        print((await door.good("GET", "/v1/tags/a/age"))["status"])
        print("/v1/tags/{tag}/age" in (await door.good("GET", "/openapi.json"))["paths"])

run(main())
"""


def test_a_route_is_a_row_and_a_handler(scratch: Scratch) -> None:
    scratch.append("issuer/doors/web/tags.py", HANDLER)
    scratch.replace("issuer/doors/web/routes.py", '    Route("PATCH", _OF,', ROW)
    assert scratch.run("-c", ASKED) == "ok\nTrue\n"
    scratch.check("tests/doors/http/test_document.py", "-k", "page")
    page = scratch.text("docs/reference/http.md")
    assert "| [`GET /v1/tags/{tag}/age`](#age) | `read` | Show the time when the tag was created. |\n" in page
    assert "| query | `unit` | string | Unit of the time |\n" in page


class Place(NamedTuple):
    """A place of a list of CONTRIBUTING: the file, the text before which the new lines come, and these lines."""

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
        "issuer/operations/config.py", '        return f"<{kind} ', '        kind = f"{kind} {self.settings.example}"\n'
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


def added(scratch: Scratch, places: Iterable[Place], title: str) -> str:
    """Add the lines, and write the generated pages; return the list of CONTRIBUTING."""
    listed = CONTRIBUTING.partition(f"**{title}**")[2].partition("\n\n**")[0]
    for place in places:
        before, there, after = scratch.text(place.file).partition(place.before)
        assert there, place
        (scratch.folder / place.file).write_text(f"{before}{place.lines}{there}{after}", encoding="utf-8")
    assert "`python -m tests.reference`" in listed
    scratch.run("-m", "tests.reference")
    return listed


def test_a_new_setting_is_written_in_as_few_places_as_the_list_has(scratch: Scratch) -> None:
    listed = re.findall(r"`(issuer/\S+\.py)`", added(scratch, PLACES, "A new setting"))
    files = [*dict.fromkeys(each.file for each in PLACES)]
    assert len(files) <= 4
    assert [each for each in files if each not in listed] == [PLACES[-1].file]

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
    assert row in scratch.text("docs/reference/settings.md")
    (scratch.folder / "issuer.toml").unlink()
    scratch.run(*PYTEST, "tests/engine/test_settings.py", "tests/house/test_prose.py", GENERATED)


TAGS = """
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


def test_a_new_setting_of_a_tag_is_written_in_as_few_places_as_the_list_has(scratch: Scratch) -> None:
    places = [*dict.fromkeys(each.file for each in TAG_PLACES)]
    assert re.findall(r"\d\. (?:The table in )?`(\S+)`", added(scratch, TAG_PLACES, "A setting of a tag")) == places
    assert len(places) <= 4

    # Both interfaces, the command line and HTTP take it, keep it in a store, and refuse a wrong value.
    for connect, await_ in (("connect", ""), ("aconnect", "await ")):
        assert scratch.run("-c", TAGS.format(connect=connect, await_=await_)) == "3 4 4 0\n" * 2
    issuer = ("-m", "issuer", "--redis", "none", "--store", "sqlite:///new.db")
    scratch.run(*issuer, "create", "a", "--example", "5")
    scratch.run(*issuer, "configure", "a", "--example", "6")
    wrong = scratch.run(*issuer, "configure", "a", "--example", "10", fails=True)
    assert "example must be 0..9, not 10" in wrong
    assert json.loads(scratch.run(*issuer, "tags", "--json"))[0]["example"] == 6

    # The pages, and what is tested against the definition.
    text = "Example. Default: 0"
    assert scratch.text("docs/reference/http.md").count(f"| body | `example` | integer 0..9 | {text} |") == 1
    assert f"{text}. Range: 0..9." in scratch.text("docs/reference/command-line.md")
    scratch.run(*PYTEST, "-m", "not soak", "tests/core/test_tags.py", "tests/doors/http/test_document.py", GENERATED)


#: Draws from a new store, and prints the names that the doctor and the spans have for it.
DRAWN = """
import issuer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
with issuer.connect(redis="none", store="crate://orders") as ids:
    ids.create("orders", order="trend", start=7)
    print(ids.next("orders"))
    print(*{each.subject for each in ids.doctor() if each.check == "store-lasting"})
print(*{each.attributes["db.system.name"] for each in spans.get_finished_spans()})
try:
    issuer.connect(redis="none", store="nobodys://x")
except issuer.ConfigurationError as error:
    print("crate://name" in str(error))
"""
BENCH = """
from issuer_persistence.crate import CrateStore


class CrateBench(MemoryBench):
    def __init__(self) -> None:
        self.memory = CrateStore()  # type: ignore[assignment]
        Bench.__init__(self)


BENCHES["crate"] = lambda _: CrateBench()
"""


def test_a_store_is_five_places(scratch: Scratch) -> None:
    stores = "persistence/issuer_persistence"
    # 1. The module: here the store in memory under another name.
    source = scratch.text(f"{stores}/memory.py")
    for old, new in (("Memory", "Crate"), ("memory://", "crate://"), ('"memory"', '"crate"')):
        source = source.replace(old, new)
    (scratch.folder / stores / "crate.py").write_text(source, encoding="utf-8")
    # 2. Its URL, 3. its layer, and its driver if it needs one.
    scratch.replace(f"{stores}/opening.py", "OURS = {\n", 'OURS = {\n    "crate://name": "crate:CrateStore",\n')
    scratch.replace("pyproject.toml", " | memory | ", " | memory | crate | ")
    # 4. Its bench, with which the contract suite runs. 5. Its row in the documentation.
    scratch.append("tests/stores/benches.py", BENCH)
    row = "| `crate://name` | A crate | none |\n| `memory://`,"
    scratch.replace("docs/reference/stores.md", "| `memory://`,", row)

    assert scratch.run("-c", DRAWN).splitlines() == ["7", "crate://orders", "crate", "True"]
    suite = ("tests/stores/test_stores.py", "tests/stores/test_opening.py")
    told = scratch.run(*PYTEST, "-k", "crate or opening", *suite)
    assert int(told.splitlines()[-1].split(" passed")[0].split()[-1]) > 30
    scratch.lint()
