"""What the README and docs/numbers.md show is what happens: their commands and their Python are run, once each."""

import re
import shlex
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from issuer.numbers.given import Given
from issuer.numbers.limits import NAMES
from issuer.numbers.sharding import shard_of
from issuer.numbers.template import Template
from tests import programs
from tests.e2e.conftest import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NUMBERS = (ROOT / "docs" / "numbers.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
    """Return the snippet with what it says in comments behind its calls, as assertions."""
    return re.sub(r"^( *)(\S+\(.*\))  # (\d+|range\(.*?\))(.*)$", r"\1assert \2 == \3  #\4", code, flags=re.MULTILINE)


def run_python(code: str) -> None:
    Path("snippet.py").write_text(checked(code), encoding="utf-8")
    done = programs.run("snippet.py")
    assert done.returncode == 0, done.stderr


def run_commands(block: str) -> int:
    """Run the commands of a block, see that they print what it shows, and return how many they are."""
    ran = 0
    for command, shown in commands(block):
        if re.fullmatch(r"issuer [^;|>]*", command):
            done = programs.run(*PROGRAM, *shlex.split(command)[1:])
        else:
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        printed = done.stdout + done.stderr
        assert re.fullmatch(as_pattern(shown), printed), f"$ {command}\n{printed}\ninstead of\n{shown}"
        assert (done.returncode == 0) == ("error: " not in shown)
        ran += 1
    return ran


@pytest.mark.live
@pytest.mark.usefixtures("home")
def test_the_readmes_commands_print_what_it_shows_with_the_python_between_them_that_needs_no_server() -> None:
    ran = 0
    for language, block in BLOCK.findall(README):
        if language == "python" and "connect(" not in block:
            run_python(block)
        ran += run_commands(block) if language == "console" else 0
    assert ran >= 8


@pytest.mark.usefixtures("home")
def test_its_python_on_servers_runs(redis_url: str, mongo_url: str) -> None:
    blocks = [block for language, block in BLOCK.findall(README) if language == "python" and "connect(" in block]
    for number, block in enumerate(blocks):
        code = block.replace("redis://localhost:6379/0", redis_url)
        run_python(code.replace("mongodb://localhost:27017/issuer", f"{mongo_url}/readme{number}"))
    assert "assert " in "".join(map(checked, blocks))


@pytest.mark.covers("1.12", "1.13", "1.14", "4.7", "4.8", "U.7", "N.3")
def test_the_snippets_on_numbers_run(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = [block for language, block in BLOCK.findall(NUMBERS) if language == "python"]
    assert len(snippets) == 9
    names: dict[str, Any] = {"__name__": "snippet"}
    try:
        for snippet in snippets:
            assert "assert" in snippet
            exec(snippet.replace("redis://localhost:6379/0", redis_url), names)  # noqa: S102 - what users are told to run
    finally:
        for ids in [names.get("ids"), *names.get("sites", [])]:
            if ids is not None:
                ids.close()


@pytest.mark.live
@pytest.mark.usefixtures("home")
def test_the_commands_on_numbers_print_what_is_shown() -> None:
    assert sum(run_commands(block) for language, block in BLOCK.findall(NUMBERS) if language == "console") == 5


@pytest.mark.covers("4.8")
def test_the_shards_of_the_table_are_those_of_the_function() -> None:
    rows = re.findall(r"^\| (`.*?`|\(empty\)) \| `0x([0-9A-F]{8})` \| (\d+) \| (\d+) \|$", NUMBERS, re.MULTILINE)
    assert len(rows) == 7
    for shown, crc, of_64, of_10 in rows:
        key = "" if shown == "(empty)" else shown.strip("`")
        assert zlib.crc32(key.encode()) == int(crc, 16)
        assert (shard_of(key, 64), shard_of(key, 10)) == (int(of_64), int(of_10))


def test_every_setting_name_of_a_limit_and_field_stands_in_the_tables_and_is_understood() -> None:
    table = NUMBERS.partition("| setting |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert get_type_hints(Given).keys() - named - {"stride_above"} == set()
    assert NAMES.keys() <= named
    assert "stride_above" in NUMBERS
    fields = re.findall(r"`(\{[a-z].*?\})`", NUMBERS.partition("| field |")[2].partition("\n\n")[0])
    assert len(fields) >= 10
    for field in fields:
        Template(field if "seq" in field else f"{{seq:04d}}-{field}")


@pytest.mark.covers("1.14")
def test_it_says_what_strides_cost_and_that_scrambling_is_no_encryption_and_that_cycles_repeat() -> None:
    text = " ".join(NUMBERS.split())
    for said in (
        "order over all sites is lost",
        "every number is also a write to its database",
        "**This is obfuscation, not encryption**",
        "**Then they repeat**",
    ):
        assert said in text
