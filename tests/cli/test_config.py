"""`issuer config`: where each value came from, and no secret in sight; `issuer token`: what it prints is a way in."""

import json
from pathlib import Path

import pytest

from issuer.doors.access import Access
from issuer.doors.tokens import PREFIX
from issuer.settings import DEFINITIONS
from tests.cli.conftest import PATIENT, Cli

NAMES = (*DEFINITIONS,)


@pytest.fixture(autouse=True)
def no_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - which sets them
    for name in PATIENT:
        monkeypatch.delenv(name)


def test_each_value_names_the_source_that_won(cli: Cli, home: Path) -> None:
    content = cli("config", "--json").json()
    assert (*content,) == NAMES
    assert {setting["source"] for setting in content.values()} == {"default"}
    assert content["store_url"]["value"] == f"sqlite:///{home}/data/issuer/issuer.db"
    assert not (home / "data").exists()
    (home / "issuer.toml").write_text('store_url = "sqlite:///a.db"\nprefix = "file"\nredis_timeout = 2\ntimeout = 9\n')
    env = {"ISSUER_PREFIX": "environment", "ISSUER_TIMEOUT": "8", "REDIS_URL": "redis://r"}
    content = cli("--timeout", "1.5", "config", "--json", env=env).json()
    named = {name: (setting["value"], setting["source"]) for name, setting in content.items()}
    assert {name: found for name, found in named.items() if found[1] != "default"} == {
        "redis_url": ("redis://r", "REDIS_URL"),
        "store_url": (f"sqlite:///{home}/a.db", "issuer.toml"),
        "prefix": ("environment", "ISSUER_PREFIX"),
        "timeout": (1.5, "argument"),
        "redis_timeout": (2.0, "issuer.toml"),
    }


def test_the_table_has_a_line_for_each_setting(cli: Cli) -> None:
    lines = cli("config").out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "SOURCE"]
    assert (*(line.split()[0] for line in lines[1:]),) == NAMES
    shown = {line.split()[0]: " ".join(line.split()[1:-1]) for line in lines[1:]}
    assert shown["timeout"] == shown["insist"] == "5 s"
    assert (shown["port_number"], shown["ip_address"]) == ("0", "this host's")
    assert (shown["machine"], shown["rack"], shown["journal"], shown["keys"]) == ("none",) * 4
    assert (shown["http"], shown["resp"], shown["allowed_hosts"]) == ("127.0.0.1:8000", "none", "none")
    assert shown["machine_files"] == "the temporary directory"


def test_no_secret_is_ever_printed(cli: Cli) -> None:
    urls = ("--redis", "rediss://me:hidden@r/0?password=hidden", "--store", "mongodb://me:hidden@m/x?tlsKey=hidden")
    env = {"ISSUER_KEYS": "k1=hidden hidden hidden,k2=hidden too hidden"}
    for command in (["config"], ["config", "--json"], ["--timeout", "0.2", "next", "orders"]):
        ended = cli(*urls, *command, env=env)
        assert "hidden" not in ended.out + ended.err
        shown = command[0] == "--timeout" or (
            "rediss://***@r/0?***" in ended.out and "k1" in ended.out and "k2" in ended.out
        )
        assert shown, command


def test_nothing_of_a_password_that_nobody_encoded_is_printed(cli: Cli) -> None:
    for cut in "#/":
        login = f"me:12{cut}hidden"
        for redis, store in ((f"redis://{login}@r/0", "mongodb://m/x"), ("none", f"mongodb://{login}@127.0.0.1:1/x")):
            urls = ("--redis", redis, "--store", store, "--timeout", "0.2")
            for command in ("config --json", "next orders", "doctor --json"):
                ended = cli(*urls, *command.split())
                assert "hidden" not in ended.out + ended.err, (urls, command)
    ended = cli("--redis", "redis://me:12#hidden@r/0", "--store", "memory://x", "next", "orders")
    assert (ended.code, "%23 for #" in ended.err) == (2, True)


def test_a_named_file_is_used_in_place_of_the_others_and_an_unknown_key_in_it_is_refused(cli: Cli, home: Path) -> None:
    (home / "issuer.toml").write_text('prefix = "near"\n')
    (home / "other.toml").write_text('prefix = "named"\n')
    named = cli("--config", "other.toml", "config", "--json").json()["prefix"]
    assert named == {"value": "named", "source": "other.toml"}
    (home / "issuer.toml").write_text('stor_url = "sqlite:///a.db"\n')
    ended = cli("next", "orders")
    assert (ended.code, ended.out) == (2, "")
    assert "issuer.toml" in ended.err
    assert "'stor_url'" in ended.err


def test_a_token_is_printed_once_with_its_line_for_the_file_which_has_no_token_in_it(cli: Cli, home: Path) -> None:
    done = cli(
        "token", "billing", "--scope", "issue", "--scope", "read", "--tag", "orders", "--tag", "in*", "--rate", "5"
    )
    assert done.code == 0
    token, line = done.out.splitlines()
    assert token.startswith(PREFIX)
    assert token not in line + done.err
    assert line.endswith(', scopes = ["issue", "read"], tags = ["orders", "in*"], rate = 5 }')
    assert [*home.iterdir()] == []
    Path("tokens.toml").write_text(line)
    caller = Access("tokens.toml").identify(token)
    assert (caller.name, caller.may("issue", "invoices"), caller.may("admin", "orders")) == ("billing", True, False)


def test_it_is_json_for_programs_and_another_one_each_time(cli: Cli) -> None:
    first, second = (cli("token", "a", "--scope", "admin", "--tag", "*", "--json").json() for _ in range(2))
    assert first["token"] != second["token"]
    assert set(first) == {"name", "token", "line"}
    assert "rate" not in first["line"]


def test_what_makes_no_line_is_an_error_of_usage(cli: Cli) -> None:
    for arguments, said in {
        ("a b", "--scope", "issue", "--tag", "x"): "name has 1 to 64 letters",
        ("a", "--scope", "write", "--tag", "x"): "'write' is not one of",
        ("a", "--scope", "issue"): "--tag",
        ("a", "--tag", "x"): "--scope",
        ("a", "--scope", "issue", "--tag", ""): "tags must be a list of patterns",
        (
            "a",
            "--scope",
            "issue",
            "--tag",
            "x",
            "--rate",
            "0",
        ): "rate (requests and numbers per second) must be a number",
    }.items():
        done = cli("token", *arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert said in done.err
    done = cli("token", "a b", "--scope", "issue", "--tag", "x", "--json")
    assert json.loads(done.err)["code"] == "invalid_argument"
