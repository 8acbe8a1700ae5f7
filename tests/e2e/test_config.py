"""`issuer config`: where each value came from, and no secret in sight."""

from pathlib import Path

from tests.e2e.conftest import Cli

NAMES = ["redis_url", "store_url", "prefix", "timeout", "store_timeout", "redis_timeout", "insist", "lease"]
NAMES += [
    "journal",
    "keys",
    "application",
    "port_number",
    "ip_address",
    "machine",
    "rack",
    "machine_files",
    "require_servers",
]


def test_without_any_settings_every_value_is_the_default(cli: Cli, home: Path) -> None:
    content = cli("config", "--json").json()
    assert list(content) == NAMES
    assert {setting["source"] for setting in content.values()} == {"default"}
    assert content["redis_url"]["value"] == "none"
    assert content["store_url"]["value"] == f"sqlite:///{home}/data/issuer/issuer.db"
    assert content["timeout"] == {"value": 5.0, "source": "default"}
    assert not (home / "data").exists()


def test_each_value_names_the_source_that_won(cli: Cli, home: Path) -> None:
    (home / "issuer.toml").write_text('store_url = "sqlite:///a.db"\nprefix = "file"\nredis_timeout = 2\ntimeout = 9\n')
    content = cli(
        *("--timeout", "1.5", "config", "--json"), env={"ISSUER_PREFIX": "environment", "ISSUER_TIMEOUT": "8"}
    ).json()
    named = {name: (setting["value"], setting["source"]) for name, setting in content.items()}
    assert {name: found for name, found in named.items() if found[1] != "default"} == {
        "store_url": (f"sqlite:///{home}/a.db", "issuer.toml"),
        "prefix": ("environment", "ISSUER_PREFIX"),
        "timeout": (1.5, "argument"),
        "redis_timeout": (2.0, "issuer.toml"),
    }
    assert (named["store_timeout"], named["lease"], named["keys"]) == (
        (3.0, "default"),
        (0, "default"),
        ([], "default"),
    )


def test_the_table_has_a_line_for_each_setting(cli: Cli) -> None:
    lines = cli("config").out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "SOURCE"]
    assert [line.split()[0] for line in lines[1:]] == NAMES
    shown = {line.split()[0]: " ".join(line.split()[1:-1]) for line in lines[1:]}
    assert shown["timeout"] == shown["insist"] == "5 s"
    assert (shown["port_number"], shown["ip_address"]) == ("0", "this host's")
    assert (shown["machine"], shown["rack"], shown["journal"], shown["keys"]) == ("none",) * 4
    assert shown["machine_files"] == "the temporary directory"


def test_no_secret_is_ever_printed(cli: Cli) -> None:
    urls = ("--redis", "rediss://me:hidden@r/0?password=hidden", "--store", "mongodb://me:hidden@m/x?tlsKey=hidden")
    for command in (["config"], ["config", "--json"], ["--timeout", "0.2", "next", "orders"]):
        ended = cli(*urls, *command)
        assert "hidden" not in ended.out + ended.err
        assert "me:***@" in ended.out + ended.err or command[0] == "--timeout"
    for command in (["config"], ["config", "--json"]):
        ended = cli(*command, env={"ISSUER_KEYS": "k1=hidden hidden hidden,k2=hidden too hidden"})
        assert "k1" in ended.out
        assert "k2" in ended.out
        assert "hidden" not in ended.out + ended.err


def test_an_unknown_key_in_the_file_is_named_and_refused(cli: Cli, home: Path) -> None:
    (home / "issuer.toml").write_text('stor_url = "sqlite:///a.db"\n')
    ended = cli("next", "orders")
    assert (ended.code, ended.out) == (2, "")
    assert "issuer.toml" in ended.err
    assert "'stor_url'" in ended.err


def test_a_named_file_is_used_in_place_of_the_others(cli: Cli, home: Path) -> None:
    (home / "issuer.toml").write_text('prefix = "near"\n')
    (home / "other.toml").write_text('prefix = "named"\n')
    assert cli("--config", "other.toml", "config", "--json").json()["prefix"] == {
        "value": "named",
        "source": "other.toml",
    }
    by_environment = cli("config", "--json", env={"ISSUER_CONFIG": str(home / "other.toml")}).json()
    assert by_environment["prefix"]["value"] == "named"


def test_redis_none_means_direct_whatever_the_environment_says(cli: Cli, store: str) -> None:
    cli("--store", store, "create", "orders")
    ended = cli("--redis", "none", "--store", store, "next", "orders", env={"ISSUER_REDIS_URL": "redis://gone"})
    assert (ended.code, ended.out) == (0, "1\n")


def test_the_store_of_another_program_is_taken_from_its_variable(cli: Cli) -> None:
    content = cli("config", "--json", env={"MONGODB_URI": "mongodb://a:b@m/x", "REDIS_URL": "redis://r"}).json()
    assert content["store_url"] == {"value": "mongodb://a:***@m/x", "source": "MONGODB_URI"}
    assert content["redis_url"] == {"value": "redis://r", "source": "REDIS_URL"}
