"""README and docs/ show what happens: of each page the Python is run, then the commands; links lead somewhere."""

import re
import shlex
import subprocess
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import get_type_hints

import pytest

import issuer
from issuer.cli import main
from issuer.numbers.limits import NAMES
from issuer.numbers.scheme_options import SchemeOptions
from issuer.numbers.sharding import shard_of
from issuer.numbers.template import Template
from issuer.settings import DEFINITIONS
from tests import programs
from tests.cli.conftest import PROGRAM
from tests.cli.sources import Source
from tests.cli.ways_over import WAYS
from tests.doors.server.conftest import Serve, serve
from tests.reference import COMMANDS
from tests.servers.absent import PACKAGES, needed
from tests.servers.web import WebServer

__all__ = ["serve"]

ROOT = Path(__file__).resolve().parents[2]
PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in PATHS}
NUMBERS, SCALING = PAGES["docs/guide/numbers.md"], PAGES["docs/guide/scaling-out.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Where a page has `issuer serve` listen.
HTTP, RESP = "127.0.0.1:8000", "-p 6380 "
#: The server of a client's page.
SERVER = "https://numbers.example:8000"
#: The rows of tests/requirements.toml that a page's snippets show.
ROWS = {
    "docs/guide/numbers.md": ("U.7", "N.3"),
    "docs/guide/plugins.md": ("3.5", "3.40", "3.41"),
    "docs/guide/scaling-out.md": ("1.12", "1.13", "1.14", "4.7", "4.8"),
    "docs/guide/strategies.md": ("3.6",),
}


def blocks(page: str, language: str) -> list[str]:
    return [block for each, block in BLOCK.findall(PAGES[page]) if each == language]


def pages_with(language: str) -> list[object]:
    """Every page that has blocks in the language, with its rows.

    Pages for other languages have tests/doors/languages. The page for Django has tests/contrib/django/test_servers.py.
    """
    return [
        pytest.param(page, marks=pytest.mark.covers(*rows) if language == "python" and rows else ())
        for page, rows in ((page, ROWS.get(page, ())) for page in PAGES)
        if blocks(page, language) and not page.startswith(("docs/guide/languages/", "docs/guide/django.md"))
    ]


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Split a console block into commands and what they print."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def as_pattern(shown: str) -> str:
    """`...` stands for the rest of a line, alone on a line for any lines."""
    return "".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in shown.splitlines()
    )


def checked(code: str) -> str:
    """Return the snippet with what it says in comments behind its expressions, as assertions."""
    says = r"^( *)(\S.*?)  # (\d+|True|range\(.*?\)|\[.*?\])(?=$|[,:])(.*)$"
    return re.sub(says, r"\1assert (\2) == \3  #\4", code, flags=re.MULTILINE)


@pytest.mark.live
@pytest.mark.parametrize("page", pages_with("python"))
def test_the_python_of_a_page_runs_and_gives_what_it_says(
    page: str, home: Path, redis_url: str, request: pytest.FixtureRequest
) -> None:
    code = "\n".join(blocks(page, "python")).replace("redis://localhost:6379/0", redis_url)
    if "mongodb://" in code:
        mongo = f"{request.getfixturevalue('mongo_url')}/{Path(page).stem}"
        code = code.replace("mongodb://localhost:27017/issuer", mongo)
    if SERVER in code:
        served = WebServer(f"sqlite:///{home}/served.db", redis=redis_url)
        request.addfinalizer(served.close)
        served.run(served.ids.create("orders"))
        (home / "token").write_text("issuer_token")
        code = code.replace(SERVER, served.address).replace("/run/secrets/issuer-token", str(home / "token"))
    (home / "page.py").write_text(checked(code), encoding="utf-8")
    done = programs.run("page.py")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split("\n")) <= {"", *re.findall(r"# (.*)", code)}
    assert "assert " in checked(code) or page == "docs/reference/errors.md"


@pytest.fixture
def sources(page: str, request: pytest.FixtureRequest) -> Iterator[dict[str, Source]]:
    """The databases of other issuers that the page reads, by their addresses there."""
    with ExitStack() as ends:
        made: dict[str, Source] = {}
        for address, (server, layouts, rows) in WAYS.get(page, {}).items():
            source = Source(request.getfixturevalue(f"{server}_server").url, *layouts)
            made[address] = ends.enter_context(closing(source))
            for table, columns, values in rows:
                source.insert(table, columns, *values)
        yield made


@pytest.mark.live
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("page", pages_with("console"))
def test_the_commands_of_a_page_print_what_it_shows(
    page: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, sources: dict[str, Source]
) -> None:
    served = None
    if sources:
        monkeypatch.setenv("ISSUER_STORE_URL", "sqlite:///issuer.db")
    if any(each in "".join(blocks(page, "console")) for each in (HTTP, RESP)):
        monkeypatch.setenv("ISSUER_REDIS_URL", request.getfixturevalue("redis_url"))
        monkeypatch.setenv("ISSUER_STORE_URL", "sqlite:///issuer.db")
    for typed, shown in commands("".join(blocks(page, "console"))):
        command = typed
        for address, source in sources.items():
            command = command.replace(address, source.url)
        for word in {*typed.split()} & {*PACKAGES}:
            needed(word)
        if HTTP in typed or RESP in typed:
            if served is None:  # with the store that commands before it have made
                start: Serve = request.getfixturevalue("serve")
                served = start("--resp", "127.0.0.1:0", *re.findall(r"--compat=\S+", "".join(blocks(page, "sh"))))
            command = command.replace(HTTP, f"127.0.0.1:{served.port()}").replace(RESP, f"-p {served.port('redis')} ")
        if re.fullmatch(r"issuer [^;|>]*", command):
            done = programs.run(*PROGRAM, *shlex.split(command)[1:])
        else:
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        printed = done.stdout + done.stderr
        assert re.fullmatch(as_pattern(shown), printed), f"$ {command}\n{printed}\ninstead of\n{shown}"
        assert (done.returncode == 0) == ("error: " not in shown)
    for statement in "".join(blocks(page, "sql") if sources else ()).split(";\n")[:-1]:
        next(iter(sources.values())).run(statement)


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_and_options_in_a_pages_words_exist_and_its_links_lead_somewhere(page: str) -> None:
    text = " ".join(re.sub(r"^```.*?^```$", "", PAGES[page], flags=re.MULTILINE | re.DOTALL).split())
    for code in re.findall(r"`issuer ([^`]*)`", text):
        known, words = {"-h", *(option for each in main.params for option in each.opts)}, shlex.split(code)
        name = next((word for word in words if word in COMMANDS), None)
        assert name or words[0] in known, code
        for each in COMMANDS[name].params if name else ():
            known.update(each.opts, each.secondary_opts)
        assert {word for word in words if word.startswith("-")} <= known, code
    assert "pip install segment" not in PAGES[page].replace('"', ""), "the package is on no index"
    for link in re.findall(r"\]\((?!https?:)([^)]*)\)", text):
        path, _, anchor = link.partition("#")
        to = (ROOT / page).parent / path if path else ROOT / page
        assert to.is_file(), link
        headings = re.findall(r"^#+ (.*)$", to.read_text(encoding="utf-8").lower(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).replace(" ", "-") for each in headings}, link
    for block in blocks(page, "toml"):
        tomllib.loads(block)


def test_the_readme_takes_two_minutes_to_read() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 150
    assert len(PAGES["README.md"].split()) <= 1100


def test_the_map_of_the_source_code_names_every_package_and_no_file_that_is_not_there() -> None:
    page = PAGES["docs/architecture.md"]
    named = set(re.findall(r"`((?:issuer|lua|persistence|tests|deploy|docs)/[\w./-]*)`", page))
    assert [path for path in named if not (ROOT / path).exists()] == []
    packages = {f"issuer/{each.parent.name}/" for each in (ROOT / "issuer").glob("*/__init__.py")}
    assert packages - {"persistence/issuer_persistence/"} <= named


def test_every_page_says_whom_it_is_for_and_is_linked_from_the_start_page_and_in_the_navigation() -> None:
    pages = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")} - {"index.md"}
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", PAGES["docs/index.md"]))
    navigation = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text(encoding="utf-8"))) - {
        "index.md"
    }
    assert pages == linked == navigation
    first = {page: PAGES[f"docs/{page}"].split("\n\n")[1] for page in pages}
    assert [page for page, said in first.items() if "This page is for" not in said] == []


def test_every_setting_and_public_name_is_on_its_page() -> None:
    row = re.compile(r"^\| `(\w+)` \| `ISSUER_(\w+)`.*? \| (.*?) \| (.*) \|$", re.MULTILINE)
    rows = row.findall(PAGES["docs/reference/settings.md"])
    assert [key for key, *_ in rows] == [variable.lower() for _, variable, *_ in rows] == list(DEFINITIONS)
    for key, _, default, meaning in rows:
        assert (default, meaning) == (DEFINITIONS[key].shown_default, DEFINITIONS[key].help)
    reference = "".join(text for page, text in PAGES.items() if "/reference/" in page)
    errors = set(dir(issuer.errors))
    assert [
        name for name in {*issuer.__all__, *issuer.values.__all__} - errors if not re.search(rf"\b{name}\b", reference)
    ] == ["__version__"]


@pytest.mark.covers("4.8")
def test_the_shards_of_the_table_are_those_of_the_function() -> None:
    rows = re.findall(r"^\| (`.*?`|\(empty\)) \| `0x([0-9A-F]{8})` \| (\d+) \| (\d+) \|$", SCALING, re.MULTILINE)
    assert len(rows) == 7
    for shown, crc, of_64, of_10 in rows:
        key = "" if shown == "(empty)" else shown.strip("`")
        assert zlib.crc32(key.encode()) == int(crc, 16)
        assert (shard_of(key, 64), shard_of(key, 10)) == (int(of_64), int(of_10))


def test_every_setting_name_of_a_limit_and_field_stands_in_the_tables_and_is_understood() -> None:
    table = NUMBERS.partition("| setting |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert get_type_hints(SchemeOptions).keys() - named == set()
    assert NAMES.keys() <= named
    fields = re.findall(r"`(\{[a-z].*?\})`", NUMBERS.partition("| field |")[2].partition("\n\n")[0])
    assert len(fields) >= 10
    for field in fields:
        Template(field if "seq" in field else f"{{seq:04d}}-{field}")


@pytest.mark.covers("1.14")
def test_it_says_what_strides_cost_and_that_scrambling_is_no_encryption() -> None:
    numbers, scaling = " ".join(NUMBERS.split()), " ".join(SCALING.split())
    assert "order over all sites is lost" in scaling
    assert "every number is also a write to its database" in scaling
    assert "**This is obfuscation, not encryption.**" in numbers
