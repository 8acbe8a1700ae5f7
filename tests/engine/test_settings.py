"""Where a setting comes from, what is refused, and that what was forgotten makes nobody count alone without a word."""

import inspect
import logging
import re
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import wiring
from issuer.errors import ConfigurationError, InvalidArgument
from issuer.settings import DEFINITIONS, STORE_VARIABLES, Settings, host_and_port, load, seconds
from tests.refusals import refused

#: Three values that differ, from the argument, the environment and the file, by the type of a setting.
USUAL: dict[type, tuple[Any, Any, Any]] = {
    float: (11.0, 12.0, 13.0),
    int: (2, 3, 4),
    str: ("argument", "environment", "file"),
    bool: (True, False, True),
    list: (["argument"], ["environment", "*.b"], ["file"]),
}
#: The same of settings with other values.
OTHERS: dict[str, tuple[Any, Any, Any]] = {
    "redis_url": ("redis://argument", "redis://environment", "redis://file"),
    "store_url": ("memory://argument", "memory://environment", "memory://file"),
    "server": ("https://argument", "https://environment", "http://file"),
    "http": ("127.0.0.1:1", "[::1]:2", "localhost:0"),
    "resp": ("127.0.0.1:1", "[::1]:2", "localhost:65535"),
    "compat": (["leaf"], ["tinyid", "leaf-go"], ["leaf:exact"]),
    "compat_prefix": ("/argument", "/environment/a", "/file"),
    "log_format": ("json", "json", "json"),
}
ALL = [name for name in DEFINITIONS if name not in {"keys", "redis_address_map"}]
NUMBERS = ("port_number", "machine", "rack")
TIMES = ("timeout", "store_timeout", "redis_timeout")
DURATIONS = (*TIMES, "drain_delay", "longest_ttl", "compat_timeout")
#: Those whose value in a file is relative to it.
PATHS = [name for name, each in DEFINITIONS.items() if each.kind.metavar == "FILE"]
NAMED = {"ISSUER_STORE_URL": "memory://x"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and home of a process that has told nothing yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(wiring, "_told_of_default", False)
    return tmp_path


def _environ(folder: Path, **variables: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_DATA_HOME": str(folder / "data"), **variables}


def _toml(name: str, value: object) -> str:
    return f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n".replace("'", '"')


def _with_store(name: str) -> str:
    """Redis may not be named without a store."""
    if name.startswith("token") and name != "tokens":
        return 'server = "https://base"\n'
    return "" if name in ("store_url", "server") else 'store_url = "memory://base"\n'


def held(found: Settings, name: str) -> tuple[Any, str]:
    """Return the value of a setting, and where it came from."""
    return getattr(found, name), found.sources[name]


def test_the_settings_are_fixed_and_show_no_value_and_are_the_defaults_where_nothing_is_given() -> None:
    found = load({"store_url": "mongodb://me:secret@m"}, environ={})
    with pytest.raises(FrozenInstanceError):
        found.lease = 5  # type: ignore[misc]
    assert "secret" not in repr(found)
    assert replace(found, store_url=None) == Settings(sources=found.sources)
    assert [*Settings().sources] == [*DEFINITIONS]


def test_keys_are_named_secrets_as_a_text_or_a_table(folder: Path) -> None:
    environ = _environ(folder, ISSUER_KEYS="k1=one secret=with a sign,k2=two")
    assert held(load(environ=environ), "keys") == ({"k1": b"one secret=with a sign", "k2": b"two"}, "ISSUER_KEYS")
    (folder / "issuer.toml").write_text('[keys]\nk1 = "one"\n')
    assert held(load(environ=_environ(folder)), "keys") == ({"k1": b"one"}, "issuer.toml")
    assert held(load({"keys": {"k": b"three"}}, environ=environ), "keys") == ({"k": b"three"}, "argument")
    (folder / "issuer.toml").unlink()
    assert held(load(environ=_environ(folder)), "keys") == ({}, "default")
    for keys in ({"": b"x"}, {"k": b""}, {"k": 5}, ["k"]):
        error = refused(ConfigurationError, "key", load, {"keys": keys}, environ=_environ(folder))
        assert "one" not in str(error)


def test_addresses_are_a_text_or_a_table(folder: Path) -> None:
    addresses = {"10.0.0.5:6379": "127.0.0.1:7001", "[::2]:1": "ids.example.com:2"}
    environ = _environ(folder, ISSUER_REDIS_ADDRESS_MAP=",".join(f"{each}={to}" for each, to in addresses.items()))
    assert load(environ=environ).redis_address_map == addresses
    (folder / "issuer.toml").write_text('[redis_address_map]\n"10.0.0.5:6379" = "127.0.0.1:7001"\n')
    assert load(environ=_environ(folder)).redis_address_map == {"10.0.0.5:6379": "127.0.0.1:7001"}
    for wrong in ("10.0.0.5=127.0.0.1:1", "h:1", {"h:1": 5}, {"h:1": "none"}, ["h:1"], 5):
        refused(ConfigurationError, "redis_address_map", load, {"redis_address_map": wrong}, environ={})


@pytest.mark.parametrize("name", ALL)
def test_argument_wins_over_environment_over_file_over_default(folder: Path, name: str) -> None:
    definition = DEFINITIONS[name]
    argument, environment, file = OTHERS.get(name) or USUAL[type(definition.default)]
    variable = f"ISSUER_{name.upper()}"
    (folder / "issuer.toml").write_text(_with_store(name) + _toml(name, file))
    said = ", ".join(environment) if isinstance(environment, list) else str(environment)
    environ = _environ(folder, **{variable: said})
    assert held(load({name: argument}, environ=environ), name) == (argument, "argument")
    assert held(load({name: None}, environ=environ), name) == (environment, variable)
    said = f"{folder}/{file}" if name in PATHS else file
    assert held(load(environ=_environ(folder)), name) == (said, "issuer.toml")
    (folder / "issuer.toml").unlink()
    default = f"sqlite:///{folder}/data/issuer/issuer.db" if name == "store_url" else definition.default
    assert held(load(environ=_environ(folder)), name) == (default, "default")


def test_variables_of_other_programs_name_the_store_if_neither_ours_nor_a_file_does(folder: Path) -> None:
    variables: dict[str, str] = {}
    for source, url in (
        ("MONGO_URL", "mongodb://b"),
        ("MONGODB_URI", "mongodb://a"),
        ("ISSUER_STORE_URL", "memory://"),
    ):
        variables[source] = url
        assert held(load(environ=variables), "store_url") == (url, source)
    (folder / "issuer.toml").write_text('store_url = "memory://file"\n')
    assert load(environ={"MONGODB_URI": "mongodb://a"}).sources["store_url"] == "issuer.toml"


def test_redis_url_counts_only_where_a_store_is_named_and_redis_can_be_switched_off_by_name() -> None:
    theirs = {"REDIS_URL": "redis://other"}
    assert held(load(environ=theirs), "redis_url") == ("none", "default")
    named = {"ISSUER_STORE_URL": "memory://"}, {"MONGO_URL": "mongodb://m"}
    for loaded in (load({"store_url": "memory://"}, environ=theirs), *(load(environ=theirs | each) for each in named)):
        assert held(loaded, "redis_url") == ("redis://other", "REDIS_URL")
    for value in ("none", "None", " NONE "):
        ours = load(environ={**theirs, **named[0], "ISSUER_REDIS_URL": value})
        assert held(ours, "redis_url") == ("none", "ISSUER_REDIS_URL")


def test_the_first_file_there_is_is_the_only_one_read(folder: Path) -> None:
    home = folder / "config" / "issuer"
    home.mkdir(parents=True)
    (home / "issuer.toml").write_text('prefix = "home"\ntimeout = 7\n')
    assert held(load(environ=_environ(folder)), "prefix") == ("home", str(home / "issuer.toml"))
    (folder / "issuer.toml").write_text('prefix = "here"\n')
    found = load(environ=_environ(folder))
    assert (found.prefix, found.sources["timeout"]) == ("here", "default")
    (folder / "a.toml").write_text('prefix = "variable"\n')
    environ = _environ(folder, ISSUER_CONFIG="a.toml")
    assert held(load(environ=environ), "prefix") == ("variable", "a.toml")
    (folder / "b.toml").write_text('prefix = "argument"\n')
    assert held(load(environ=environ, config="b.toml"), "prefix") == ("argument", "b.toml")
    assert load(environ=environ, config=folder / "b.toml").prefix == "argument"


def test_without_xdg_variables_the_folders_are_those_of_the_home(folder: Path) -> None:
    (folder / ".config" / "issuer").mkdir(parents=True)
    (folder / ".config" / "issuer" / "issuer.toml").write_text('prefix = "home"\n')
    found = load(environ={})
    assert found.prefix == "home"
    assert found.store_url == f"sqlite:///{folder}/.local/share/issuer/issuer.db"


def test_a_file_that_was_named_has_to_be_there_and_to_be_a_file(folder: Path) -> None:
    gone = str(folder / "gone.toml")
    for options in ({"environ": {}, "config": gone}, {"environ": {"ISSUER_CONFIG": gone}}):
        refused(ConfigurationError, r"there is no settings file .*gone\.toml", load, **options)
    refused(ConfigurationError, "settings file", load, environ={}, config=folder)


def test_a_file_that_cannot_be_meant_is_named_and_refused(folder: Path) -> None:
    for content, problem in {
        b"prefix = ": "Invalid value",
        b"\xff\xfe": "utf-8",
        b'prefx = "a"\n': "unknown key 'prefx'; the keys are redis_url, store_url, server",
        b'[redis]\nurl = "a"\n': "unknown key 'redis'",
    }.items():
        (folder / "issuer.toml").write_bytes(content)
        assert "issuer.toml" in str(refused(ConfigurationError, problem, load, environ=_environ(folder)))


def wrong(name: str, value: object, said: str) -> ConfigurationError:
    """Return the error for that value of an argument, which says this."""
    return refused(ConfigurationError, said, load, {name: value}, environ={"HOME": "/nonexistent"})


#: What is no value of a setting: its name, what the error says, and values.
WRONG: list[tuple[str, str, Sequence[object]]] = [
    *((name, "must be a number of seconds, ", ["-1", "soon", "nan", "inf", -0.1, True, []]) for name in DURATIONS),
    *((name, "above 0", [0]) for name in TIMES[1:]),  # the caller's alone may be zero
    ("store_timeout", "at most 2147483, not 3000000", [3e6, "3000000"]),  # servers take 2^31-1 ms
    *((name, "must be a whole number, not ", ["one", "1.5", 1.5, True, []]) for name in NUMBERS),
    *(
        (
            name,
            "must be HOST:PORT",
            ["8000", ":8000", "h:", "h:x", "h:-1", "::1:80", "[h]:1", "[::1", "[]:1", 5, ["h:1"]],
        )
        for name in ("http", "resp")
    ),
    ("http", "a port is 0..65535", ["127.0.0.1:65536"]),
    ("workers", "must be 1..256", [0, -1, 257, "0"]),
    ("workers", "must be a whole number", ["two", 1.5]),
    ("open", "true or false", ["perhaps", 1]),
    ("allowed_hosts", "must be a list of names", ["", "a,,b", [""], ["a", 5], 5]),
    ("compat", "must be leaf, leaf:exact, tinyid or leaf-go", ["cosid", "leaf:cut", ["Leaf"]]),
    ("compat", "contradict each other", ["leaf,leaf:exact"]),
    ("compat_prefix", "must be a path", ["ids", "/a b", "//", "/a?b", 5]),
    ("log_format", "must be text or json", ["xml", "", 5]),
    ("prefix", "prefix", ["", "a{b", "a}", "a\n", "\x7f", 5]),
    *((name, "scheme", ["localhost:6379"]) for name in ("redis_url", "store_url")),
]


def test_what_is_no_value_names_the_setting_and_its_source(folder: Path) -> None:
    for name, said, values in WRONG:
        for value in values:
            wrong(name, value, f"{name} from argument: .*{said}")
    assert load({"timeout": 0}, environ={}).timeout == 0.0
    (folder / "issuer.toml").write_text('rack = "one"\n')
    refused(ConfigurationError, "rack from .*issuer.toml: must be a whole", load, environ=_environ(folder))
    for time in (-1, float("inf"), float("nan"), True, "1", None):
        refused(InvalidArgument, "", seconds, time, "timeout", zero=True)


def test_what_has_no_name_may_be_a_secret_and_is_not_told() -> None:
    for text in ("a very secret secret", "k1=0123456789abcdef,a very secret secret"):
        assert "very" not in str(wrong("keys", text, 'as in "k1=secret,k2=secret"'))


def test_an_address_may_be_none(folder: Path) -> None:
    for none in ("none", "NONE", " none "):
        assert load({"http": none, "resp": none}, environ=_environ(folder)).http == ""
    assert host_and_port("[::1]:80") == ("::1", 80)
    assert host_and_port("ids.example.com:8000") == ("ids.example.com", 8000)


def test_redis_without_a_store_is_refused_wherever_it_was_named(folder: Path) -> None:
    url = {"ISSUER_REDIS_URL": "redis://r"}
    wrong("redis_url", "redis://r", r"Redis is configured \(argument\), but no store")
    refused(ConfigurationError, r"\(ISSUER_REDIS_URL\), but no store", load, environ=_environ(folder, **url))
    (folder / "issuer.toml").write_text('redis_url = "redis://r"\n')
    refused(ConfigurationError, r"\(issuer.toml\), but no store", load, environ=_environ(folder))


def test_tags_are_made_by_themselves_only_where_nobody_named_a_server() -> None:
    for environ, embedded in (({}, True), ({"REDIS_URL": "redis://r"}, True), ({"MONGO_URL": "mongodb://m"}, False)):
        assert load({"prefix": "p", "timeout": 1}, environ=environ).embedded is embedded, environ
    assert not load({"store_url": "memory://"}, environ={}).embedded


#: Variables of other programs: of OpenID Connect libraries, and what Kubernetes sets beside a service of our name.
FOREIGN = [
    *(f"ISSUER_{name}" for name in ("BASE_URL", "URL", "URI", "ID", "NAME", "KEY", "HOST", "PORTS", "JWKS_URI")),
    *(
        f"ISSUER_{service}{what}"
        for service in ("", "REDIS_", "STORE_")
        for what in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    ),
]
HOME = {"HOME": "/nonexistent"}


def test_variables_of_other_programs_that_begin_like_ours_are_let_pass() -> None:
    for variable in FOREIGN:
        assert load(environ={variable: "10.0.0.1", **HOME}) == load(environ=HOME), variable
    everything = dict.fromkeys(FOREIGN, "x")
    assert load(environ={**everything, **HOME}) == load(environ=HOME)


def misspelt(name: str) -> set[str]:
    """The name with one letter left out, doubled, replaced, or swapped with the next one."""
    found = set()
    for at in range(len(name)):
        before, letter, after = name[:at], name[at], name[at + 1 :]
        found |= {before + after, before + letter * 2 + after, f"{before}X{after}"}
        found.add(before + after[:1] + letter + after[1:])
    return found - {name}


def test_a_misspelt_variable_of_ours_is_refused_and_told_which_one_it_is_like() -> None:
    variables = [name.upper() for name in (*ALL, "config") if len(name) > 4]
    for name in variables:
        for said in misspelt(name):
            refused(ConfigurationError, f"ISSUER_{said}: .*ISSUER_", load, environ={f"ISSUER_{said}": "1", **HOME})
    for said, meant in {
        "STORE": "STORE_URL",
        "REDIS": "REDIS_URL",
        "REDIS_URI": "REDIS_URL",
        "STORE_URI": "STORE_URL",
        "redis_url": "REDIS_URL",
    }.items():
        variable = f"ISSUER_{said}"
        told = refused(ConfigurationError, f"ISSUER_{meant} is meant", load, environ={variable: "secret", **HOME})
        assert "secret" not in str(told)


def test_a_variable_that_would_not_be_read_is_not_held_against_anyone() -> None:
    environ = {"ISSUER_REDIS_URI": "x", "ISSUER_STORE": "", "ISSUER_STORE_URI": "x", **HOME}
    named = {"redis_url": "redis://r", "store_url": "memory://x"}
    assert held(load(named, environ=environ), "redis_url") == ("redis://r", "argument")
    ours = {"ISSUER_REDIS_URL": "redis://r", "ISSUER_STORE_URL": "memory://x"}
    assert held(load(environ={**environ, **ours}), "redis_url") == ("redis://r", "ISSUER_REDIS_URL")
    refused(ConfigurationError, "ISSUER_REDIS_URI", load, {"store_url": "memory://x"}, environ=environ)
    # An empty one of ours neither.
    assert load(named, environ={"ISSUER_REDIS_URL": "", **HOME}).sources["redis_url"] == "argument"


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_variable_that_is_empty_is_refused(empty: str) -> None:
    ours = [each.variable for each in DEFINITIONS.values()]
    for name in (*ours, "ISSUER_CONFIG", *STORE_VARIABLES):
        refused(ConfigurationError, f"{name} is empty", load, environ={name: empty})
    refused(ConfigurationError, "REDIS_URL is empty", load, environ={**NAMED, "REDIS_URL": empty})
    # Variables of others that nobody looks at may be empty.
    assert load(environ={"REDIS_URL": ""}).embedded
    assert load(environ={**NAMED, "MONGODB_URI": ""}).store_url == "memory://x"


@pytest.mark.parametrize("make", [issuer.connect, issuer.aconnect])
def test_what_a_missing_variable_gives_is_refused(make: Any) -> None:
    for given in ({"redis": None}, {"store": None}, {"redis": None, "store": None}, {"redis": "none", "store": None}):
        refused(ConfigurationError, "is None: omit it", make, **given)
    refused(ConfigurationError, "no store is configured", make, redis="none")


def test_the_default_is_told_once_by_the_name_of_its_file(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        issuer.connect(scheduler=None).close()
        issuer.connect(scheduler=None, store="memory://").close()
    (told,) = caplog.records
    assert str(tmp_path / "issuer" / "issuer.db") in told.getMessage()


def test_the_default_is_refused_where_servers_are_required() -> None:
    for said in ("1", "true", "yes"):
        required = {"ISSUER_REQUIRE_SERVERS": said}
        refused(ConfigurationError, r"require_servers \(ISSUER_REQUIRE_SERVERS\)", load, environ=required)
        assert load(environ={**required, **NAMED}).require_servers
    assert load(environ={"ISSUER_REQUIRE_SERVERS": "0"}).embedded
    refused(ConfigurationError, "true or false", load, environ={"ISSUER_REQUIRE_SERVERS": "perhaps"})


def test_relative_paths_of_a_settings_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "issuer.toml").write_text('store_url = "sqlite:///ids.db"\njournal = "j"\nmachine_files = "m"\n')
    for here, named in ((tmp_path, "etc/issuer.toml"), (etc, "issuer.toml"), (etc, None)):
        monkeypatch.chdir(here)
        found = load(config=named, environ={})
        values = (found.store_url, found.journal, found.machine_files)
        assert values == (f"sqlite:///{etc}/ids.db", f"{etc}/j", f"{etc}/m")


def test_absolute_paths_and_those_of_variables_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "issuer.toml").write_text('store_url = "sqlite:////var/ids.db"\njournal = "/var/j"\n')
    found = load(environ={})
    assert (found.store_url, found.journal) == ("sqlite:////var/ids.db", "/var/j")
    assert load(environ={"ISSUER_STORE_URL": "sqlite:///ids.db"}).store_url == "sqlite:///ids.db"


def test_an_argument_that_has_the_name_of_a_setting_is_that_setting_in_both_faces() -> None:
    others = {"redis_credentials", "store_credentials", "plugins", "instance", "scheduler", "config"}
    wanted = {each.argument for each in DEFINITIONS.values() if each.connect} | others
    blocking, awaited = (inspect.signature(face).parameters for face in (issuer.connect, issuer.aconnect))
    assert blocking.keys() == wanted
    assert [(each.name, each.default) for each in blocking.values()] == [
        (each.name, each.default) for each in awaited.values()
    ]
    told = inspect.getdoc(issuer.connect) or ""
    assert [*blocking] == re.findall(r"^    (\w+): ", told.partition("Args:")[2].partition("Raises:")[0], re.MULTILINE)
    for each in DEFINITIONS.values():
        for range in re.findall(r"\d+\.\.\d+", each.help) if each.connect else []:
            assert range in told.replace(" (none)", "").replace(" 000", "000"), each.name
    for face in (issuer.connect, issuer.aconnect):
        ids = face(
            redis="none", store="memory://", prefix="p", timeout=7, store_timeout=6, insist=5, lease=4, scheduler=None
        )
        found = ids.engine.config.settings
        assert (found.prefix, found.timeout, found.store_timeout, found.insist, found.lease) == ("p", 7, 6, 5, 4)
        ids.engine.config.store.close()
