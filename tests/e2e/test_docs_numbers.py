"""The snippets and commands of docs/numbers.md run, and what its tables say is so."""

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import issuer
from issuer.numbers.given import Given
from issuer.numbers.limits import NAMES
from issuer.numbers.sharding import shard_of
from issuer.numbers.template import Template
from tests.e2e.test_readme import as_pattern, commands

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "numbers.md").read_text(encoding="utf-8")


@pytest.mark.covers("1.12", "1.13", "1.14", "4.7", "4.8", "U.7", "N.3")
def test_the_snippets_run(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
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


def test_without_the_common_border_the_sites_repeat_numbers() -> None:
    """The mutation: the page's change from two sites to three, without `limit` and `stride_above`."""
    sites = [issuer.connect(redis=None, store="memory://", scheduler=None) for _ in range(3)]
    try:
        for offset, site in enumerate(sites[:2], 1):
            site.create("parcels", stride=2, offset=offset)
        given = [number for site in sites[:2] for number in site.take("parcels", 100)]
        sites[2].create("parcels", stride=3, offset=3)
        assert set(given) & set(sites[2].take("parcels", 50))
    finally:
        for site in sites:
            site.close()


def test_its_commands_print_what_it_shows(tmp_path: Path) -> None:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ISSUER_", "MONGO", "REDIS"))}
    home = {name: str(tmp_path) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (block,) = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    ran = 0
    for command, printed in commands(block):
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env={**ours, **home, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert re.fullmatch(as_pattern(printed), done.stdout + done.stderr), f"$ {command}\n{done.stdout}{done.stderr}"
        assert (done.returncode == 0) == (not printed.startswith("error"))
        ran += 1
    assert ran == 5


@pytest.mark.covers("4.8")
def test_the_shards_of_the_table_are_those_of_the_function() -> None:
    rows = re.findall(r"^\| (`.*?`|\(empty\)) \| `0x([0-9A-F]{8})` \| (\d+) \| (\d+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 7
    for shown, crc, of_64, of_10 in rows:
        key = "" if shown == "(empty)" else shown.strip("`")
        assert zlib.crc32(key.encode()) == int(crc, 16)
        assert (shard_of(key, 64), shard_of(key, 10)) == (int(of_64), int(of_10))


def test_every_setting_and_every_name_of_a_limit_stands_in_the_table() -> None:
    table = TEXT.partition("| setting |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(\w+)`", table))
    assert get_type_hints(Given).keys() - named - {"stride_above"} == set()
    assert NAMES.keys() <= named
    assert "stride_above" in TEXT


def test_every_field_of_the_table_is_understood() -> None:
    table = TEXT.partition("| field |")[2].partition("\n\n")[0]
    fields = re.findall(r"`(\{[a-z].*?\})`", table)
    assert len(fields) >= 10
    for field in fields:
        Template(field if "seq" in field else f"{{seq:04d}}-{field}")


@pytest.mark.covers("1.14")
def test_it_says_what_strides_cost() -> None:
    section = " ".join(TEXT.partition("## Strides")[2].partition("\n## ")[0].split())
    assert "order over all sites is lost" in section
    assert "every number is also a write to its database" in section


def test_it_says_that_scrambling_is_no_encryption_and_that_cycles_repeat() -> None:
    assert "**This is obfuscation, not encryption**" in TEXT
    assert "**Then they repeat**" in TEXT
