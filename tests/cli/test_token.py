"""`issuer token`: what it prints opens the door, and is kept nowhere."""

import json
from pathlib import Path

from issuer.doors.access import Access
from issuer.doors.tokens import PREFIX
from tests.cli.conftest import Cli


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
