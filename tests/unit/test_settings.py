"""Where a setting comes from, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from issuer import settings
from issuer.errors import ConfigurationError, InvalidArgument
from issuer.settings import Setting, load, seconds
from tests.unit.refusals import refused

#: For every setting four values that differ: from the argument, the environment, the file, and the default.
VALUES: dict[str, tuple[Any, Any, Any, Any]] = {
    "redis_url": ("redis://argument", "redis://environment", "redis://file", "none"),
    "store_url": ("memory://argument", "memory://environment", "memory://file", None),
    "prefix": ("argument", "environment", "file", "issuer"),
    "timeout": (11.0, 12.0, 13.0, 5.0),
    "store_timeout": (11.0, 12.0, 13.0, 3.0),
    "redis_timeout": (11.0, 12.0, 13.0, 1.0),
    "insist": (11.0, 12.0, 13.0, 5.0),
    "lease": (11, 12, 13, 0),
    "journal": ("argument", "environment", "file", ""),
    "application": ("argument", "environment", "file", "issuer"),
    "port_number": (11, 12, 13, 0),
    "ip_address": ("10.0.0.1", "10.0.0.2", "10.0.0.3", ""),
    "machine": (11, 12, 13, -1),
    "rack": (1, 2, 3, -1),
    "machine_files": ("argument", "environment", "file", ""),
    "require_servers": (False, True, False, False),
}
#: Those whose value in a file is relative to it.
PATHS = ("journal", "machine_files")
ALL = list(VALUES)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and home; the environment is given to each `load`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def _environ(folder: Path, **variables: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder / "config"), "XDG_DATA_HOME": str(folder / "data"), **variables}


def _toml(name: str, value: object) -> str:
    return f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n".replace("'", '"')


def _with_store(name: str) -> str:
    """Redis may not be named without a store."""
    return "" if name == "store_url" else 'store_url = "memory://base"\n'


def test_every_setting_is_covered_here() -> None:
    assert [name for name in load(environ={}).named() if name != "keys"] == ALL


def test_keys_are_named_secrets_as_a_text_or_a_table(folder: Path) -> None:
    environ = _environ(folder, ISSUER_KEYS="k1=one secret=with a sign,k2=two")
    assert load(environ=environ).keys == Setting({"k1": b"one secret=with a sign", "k2": b"two"}, "ISSUER_KEYS")
    (folder / "issuer.toml").write_text('[keys]\nk1 = "one"\n')
    assert load(environ=_environ(folder)).keys == Setting({"k1": b"one"}, "issuer.toml")
    assert load({"keys": {"k": b"three"}}, environ=environ).keys == Setting({"k": b"three"}, "argument")
    (folder / "issuer.toml").unlink()
    assert load(environ=_environ(folder)).keys == Setting({}, "default")
    for keys in ({"": b"x"}, {"k": b""}, {"k": 5}, ["k"]):
        error = refused(ConfigurationError, "key", load, {"keys": keys}, environ=_environ(folder))
        assert "one" not in str(error)


@pytest.mark.parametrize("name", ALL)
def test_argument_wins_over_environment_over_file_over_default(folder: Path, name: str) -> None:
    argument, environment, file, default = VALUES[name]
    variable = f"ISSUER_{name.upper()}"
    (folder / "issuer.toml").write_text(_with_store(name) + _toml(name, file))
    environ = _environ(folder, **{variable: str(environment)})
    assert load({name: argument}, environ=environ).named()[name] == Setting(argument, "argument")
    assert load({name: None}, environ=environ).named()[name] == Setting(environment, variable)
    said = f"{folder}/{file}" if name in PATHS else file
    assert load(environ=_environ(folder)).named()[name] == Setting(said, "issuer.toml")
    (folder / "issuer.toml").unlink()
    found = load(environ=_environ(folder)).named()[name]
    assert found.source == "default"
    assert found.value == (default if default is not None else f"sqlite:///{folder}/data/issuer/issuer.db")


def test_variables_of_other_programs_name_the_store_if_ours_does_not() -> None:
    other = {"MONGO_URL": "mongodb://b"}
    for source, variables in {
        "MONGO_URL": other,
        "MONGODB_URI": {**other, "MONGODB_URI": "mongodb://a"},
        "ISSUER_STORE_URL": {**other, "MONGODB_URI": "mongodb://a", "ISSUER_STORE_URL": "memory://"},
    }.items():
        assert load(environ=variables).store_url == Setting(variables[source], source)


def test_a_file_that_names_the_store_wins_over_other_programs_variables(folder: Path) -> None:
    (folder / "issuer.toml").write_text('store_url = "memory://file"\n')
    assert load(environ={"MONGODB_URI": "mongodb://a"}).store_url.source == "issuer.toml"


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [({"store_url": "memory://"}, {}), ({}, {"ISSUER_STORE_URL": "memory://"}), ({}, {"MONGO_URL": "mongodb://m"})],
)
def test_redis_url_counts_only_where_a_store_is_named(arguments: dict[str, str], variables: dict[str, str]) -> None:
    environ = {**variables, "REDIS_URL": "redis://other"}
    assert load(arguments, environ=environ).redis_url == Setting("redis://other", "REDIS_URL")
    assert load(environ={"REDIS_URL": "redis://other"}).redis_url == Setting("none", "default")
    ours = load(arguments, environ={**environ, "ISSUER_REDIS_URL": "none"})
    assert ours.redis_url == Setting("none", "ISSUER_REDIS_URL")


def test_the_first_file_there_is_is_the_only_one_read(folder: Path) -> None:
    home = folder / "config" / "issuer"
    home.mkdir(parents=True)
    (home / "issuer.toml").write_text('prefix = "home"\ntimeout = 7\n')
    assert load(environ=_environ(folder)).prefix == Setting("home", str(home / "issuer.toml"))
    (folder / "issuer.toml").write_text('prefix = "here"\n')
    found = load(environ=_environ(folder))
    assert (found.prefix.value, found.timeout.source) == ("here", "default")
    (folder / "a.toml").write_text('prefix = "variable"\n')
    environ = _environ(folder, ISSUER_CONFIG="a.toml")
    assert load(environ=environ).prefix == Setting("variable", "a.toml")
    (folder / "b.toml").write_text('prefix = "argument"\n')
    assert load(environ=environ, config="b.toml").prefix == Setting("argument", "b.toml")
    assert load(environ=environ, config=folder / "b.toml").prefix.value == "argument"


def test_without_xdg_variables_the_folders_are_those_of_the_home(folder: Path) -> None:
    (folder / ".config" / "issuer").mkdir(parents=True)
    (folder / ".config" / "issuer" / "issuer.toml").write_text('prefix = "home"\n')
    found = load(environ={})
    assert found.prefix.value == "home"
    assert found.store_url.value == f"sqlite:///{folder}/.local/share/issuer/issuer.db"


def test_a_file_that_was_named_has_to_be_there_and_to_be_a_file(folder: Path) -> None:
    gone = str(folder / "gone.toml")
    for options in ({"environ": {}, "config": gone}, {"environ": {"ISSUER_CONFIG": gone}}):
        refused(ConfigurationError, r"there is no settings file .*gone\.toml", load, **options)
    refused(ConfigurationError, "settings file", load, environ={}, config=folder)


def test_a_file_that_cannot_be_meant_is_named_and_refused(folder: Path) -> None:
    for content, problem in {
        b"prefix = ": "Invalid value",
        b"\xff\xfe": "utf-8",
        b'prefx = "a"\n': "unknown key 'prefx'; there are redis_url, store_url, prefix",
        b'[redis]\nurl = "a"\n': "unknown key 'redis'",
    }.items():
        (folder / "issuer.toml").write_bytes(content)
        assert "issuer.toml" in str(refused(ConfigurationError, problem, load, environ=_environ(folder)))


def wrong(name: str, value: object, said: str) -> ConfigurationError:
    """Return the error for that value of an argument, which says this."""
    return refused(ConfigurationError, said, load, {name: value}, environ={"HOME": "/nonexistent"})


def test_a_time_that_is_none_names_the_setting_and_its_source() -> None:
    for name in ("timeout", "store_timeout", "redis_timeout"):
        times: list[object] = ["-1", "soon", "nan", "inf", -0.1, True, [], float("nan")]
        for value in times:
            wrong(name, value, f"{name} from argument: {name} must be a number of seconds, ")
    assert load({"timeout": 0}, environ={}).timeout.value == 0.0  # the caller's alone may be zero
    for name in ("store_timeout", "redis_timeout"):
        wrong(name, 0, "above 0")
    for time in (-1, float("inf"), float("nan"), True, "1", None):
        refused(InvalidArgument, "", seconds, time, "timeout", zero=True)


def test_a_number_that_is_none_names_the_setting_and_its_source(folder: Path) -> None:
    for name in ("port_number", "machine", "rack"):
        numbers: list[object] = ["one", "1.5", 1.5, True, []]
        for value in numbers:
            wrong(name, value, f"{name} from argument: must be a whole number, not ")
        (folder / "issuer.toml").write_text(f'{name} = "one"\n')
        said = f"{name} from .*issuer.toml: must be a whole number, not "
        refused(ConfigurationError, said, load, environ=_environ(folder))
        (folder / "issuer.toml").unlink()


def test_what_has_no_name_may_be_a_secret_and_is_not_told() -> None:
    for text in ("a very secret secret", "k1=0123456789abcdef,a very secret secret"):
        assert "very" not in str(wrong("keys", text, 'as in "k1=secret,k2=secret"'))


def test_a_prefix_that_cannot_stand_before_the_braces_is_refused() -> None:
    for value in ("", "a{b", "a}", "a\n", "\x7f", 5):
        wrong("prefix", value, "prefix from argument: ")


def test_a_url_without_a_scheme_is_refused_with_that_reason() -> None:
    for name in ("redis_url", "store_url"):
        wrong(name, "localhost:6379", "scheme")


def test_redis_can_be_switched_off_by_name() -> None:
    for value in ("none", "None", " NONE "):
        environ = {"ISSUER_REDIS_URL": value, "ISSUER_STORE_URL": "memory://"}
        assert load(environ=environ).redis_url == Setting("none", "ISSUER_REDIS_URL")


def test_redis_without_a_store_is_refused_wherever_it_was_named(folder: Path) -> None:
    url = {"ISSUER_REDIS_URL": "redis://r"}
    wrong("redis_url", "redis://r", r"Redis is named \(argument\) but no store")
    refused(ConfigurationError, r"\(ISSUER_REDIS_URL\) but no store", load, environ=_environ(folder, **url))
    (folder / "issuer.toml").write_text('redis_url = "redis://r"\n')
    refused(ConfigurationError, r"\(issuer.toml\) but no store", load, environ=_environ(folder))


def test_tags_are_made_by_themselves_only_where_nobody_named_a_server() -> None:
    embedded: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"prefix": "p", "timeout": 1}, {}),
        ({}, {"REDIS_URL": "redis://r"}),
    ]
    named: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"redis_url": "none", "store_url": "memory://"}, {}),
        ({"store_url": "memory://"}, {}),
        ({}, {"MONGO_URL": "mongodb://m"}),
    ]
    assert all(load(arguments, environ=environ).embedded for arguments, environ in embedded)
    assert not any(load(arguments, environ=environ).embedded for arguments, environ in named)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_PREFIX", "process")
    assert settings.load().prefix == Setting("process", "ISSUER_PREFIX")


def test_a_variable_of_ours_that_means_nothing_is_refused_but_for_those_of_kubernetes() -> None:
    home = {"HOME": "/nonexistent"}
    refused(ConfigurationError, "ISSUER_STORE;", load, environ={"ISSUER_STORE": "mongodb://localhost", **home})
    # What Kubernetes sets beside a service of our name.
    for variable in (
        *("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR"),
        *("REDIS_SERVICE_HOST", "REDIS_PORT_6379_TCP_PROTO"),
    ):
        assert load(environ={f"ISSUER_{variable}": "10.0.0.1", **home}) == load(environ=home), variable
    for variable in ("ISSUER_REDIS_ULR", "ISSUER_PORTS", "ISSUER_HOST", "ISSUER_STORE_PORT_X"):
        refused(ConfigurationError, variable, load, environ={variable: "10.0.0.1", **home})
