"""Where a setting comes from, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from issuer import settings
from issuer.errors import ConfigurationError, InvalidArgument
from issuer.settings import Setting, load, seconds

#: For every setting four values that differ: from the argument, the environment, the file, and the default.
VALUES: dict[str, tuple[Any, Any, Any, Any]] = {
    "redis_url": ("redis://argument", "redis://environment", "redis://file", "none"),
    "store_url": ("memory://argument", "memory://environment", "memory://file", None),
    "prefix": ("argument", "environment", "file", "issuer"),
    "timeout": (11.0, 12.0, 13.0, 5.0),
    "store_timeout": (11.0, 12.0, 13.0, 3.0),
    "redis_timeout": (11.0, 12.0, 13.0, 1.0),
    "lease": (11, 12, 13, 0),
    "journal": ("argument", "environment", "file", ""),
    "application": ("argument", "environment", "file", "issuer"),
    "port_number": (11, 12, 13, 0),
    "ip_address": ("10.0.0.1", "10.0.0.2", "10.0.0.3", ""),
    "machine": (11, 12, 13, -1),
    "rack": (1, 2, 3, -1),
    "machine_files": ("argument", "environment", "file", ""),
}
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
    return f"{name} = {value!r}\n".replace("'", '"')


def _with_store(name: str) -> str:
    """Redis may not be named without a store."""
    return "" if name == "store_url" else 'store_url = "memory://base"\n'


# ------------------------------------------------------------------------------------------------ precedence


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
    for wrong in ({"": b"x"}, {"k": b""}, {"k": 5}, ["k"]):
        with pytest.raises(ConfigurationError, match="key") as error:
            load({"keys": wrong}, environ=_environ(folder))
        assert "one" not in str(error.value)


@pytest.mark.parametrize("name", ALL)
def test_argument_wins_over_environment_over_file_over_default(folder: Path, name: str) -> None:
    argument, environment, file, default = VALUES[name]
    variable = f"ISSUER_{name.upper()}"
    (folder / "issuer.toml").write_text(_with_store(name) + _toml(name, file))
    environ = _environ(folder, **{variable: str(environment)})
    assert load({name: argument}, environ=environ).named()[name] == Setting(argument, "argument")
    assert load({name: None}, environ=environ).named()[name] == Setting(environment, variable)
    assert load(environ=_environ(folder)).named()[name] == Setting(file, "issuer.toml")
    (folder / "issuer.toml").unlink()
    found = load(environ=_environ(folder)).named()[name]
    assert found.source == "default"
    assert found.value == (default if default is not None else f"sqlite:///{folder}/data/issuer/issuer.db")


def test_an_empty_variable_counts_as_none(folder: Path) -> None:
    environ = _environ(folder, ISSUER_PREFIX="", ISSUER_STORE_URL="", MONGODB_URI="", ISSUER_CONFIG="")
    assert load(environ=environ) == load(environ=_environ(folder))


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        ({"MONGODB_URI": "mongodb://a", "MONGO_URL": "mongodb://b"}, "MONGODB_URI"),
        ({"MONGO_URL": "mongodb://b"}, "MONGO_URL"),
        ({"ISSUER_STORE_URL": "memory://", "MONGODB_URI": "mongodb://a"}, "ISSUER_STORE_URL"),
    ],
)
def test_variables_of_other_programs_name_the_store_if_ours_does_not(variables: dict[str, str], source: str) -> None:
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


# ------------------------------------------------------------------------------------------------ files


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


@pytest.mark.parametrize("named", ["argument", "variable"])
def test_a_file_that_was_named_has_to_be_there(folder: Path, named: str) -> None:
    gone = str(folder / "gone.toml")
    config, environ = (gone, {}) if named == "argument" else (None, {"ISSUER_CONFIG": gone})
    with pytest.raises(ConfigurationError, match=r"there is no settings file .*gone\.toml"):
        load(environ=environ, config=config)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"prefix = ", "Invalid value"),
        (b"\xff\xfe", "utf-8"),
        (b'prefx = "a"\n', "unknown key 'prefx'; there are redis_url, store_url, prefix"),
        (b'[redis]\nurl = "a"\n', "unknown key 'redis'"),
    ],
)
def test_a_file_that_cannot_be_meant_is_named_and_refused(folder: Path, content: bytes, problem: str) -> None:
    (folder / "issuer.toml").write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem) as caught:
        load(environ=_environ(folder))
    assert "issuer.toml" in str(caught.value)


def test_a_folder_in_place_of_the_file_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="settings file"):
        load(environ={}, config=folder)


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("name", ["timeout", "store_timeout", "redis_timeout"])
@pytest.mark.parametrize("value", ["-1", "soon", "nan", "inf", -0.1, True, [], float("nan")])
def test_a_time_that_is_none_names_the_setting_and_its_source(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} from argument: {name} must be a number of seconds, "):
        load({name: value}, environ={})


@pytest.mark.parametrize("name", ["port_number", "machine", "rack"])
@pytest.mark.parametrize("value", ["one", "1.5", 1.5, True, None, []])
def test_a_number_that_is_none_names_the_setting_and_its_source(folder: Path, name: str, value: object) -> None:
    if value is None:
        (folder / "issuer.toml").write_text(f'{name} = "one"\n')
    arguments, source = ({}, "issuer.toml") if value is None else ({name: value}, "argument")
    with pytest.raises(ConfigurationError, match=f"{name} from .*{source}: must be a whole number, not "):
        load(arguments, environ=_environ(folder))


@pytest.mark.parametrize("text", ["a very secret secret", "k1=0123456789abcdef,a very secret secret"])
def test_what_has_no_name_may_be_a_secret_and_is_not_told(text: str) -> None:
    with pytest.raises(ConfigurationError, match='as in "k1=secret,k2=secret"') as caught:
        load({"keys": text}, environ={})
    assert "very" not in str(caught.value)


def test_only_the_callers_timeout_may_be_zero() -> None:
    assert load({"timeout": 0}, environ={}).timeout.value == 0.0
    for name in ("store_timeout", "redis_timeout"):
        with pytest.raises(ConfigurationError, match="above 0"):
            load({name: 0}, environ={})


@pytest.mark.parametrize("value", ["", "a{b", "a}", "a\n", "\x7f", 5])
def test_a_prefix_that_cannot_stand_before_the_braces_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="prefix from argument: "):
        load({"prefix": value}, environ={})


@pytest.mark.parametrize("value", ["none", "None", " NONE "])
def test_redis_can_be_switched_off_by_name(value: str) -> None:
    found = load(environ={"ISSUER_REDIS_URL": value})
    assert found.redis_url == Setting("none", "ISSUER_REDIS_URL")


@pytest.mark.parametrize("source", ["argument", "ISSUER_REDIS_URL", "issuer.toml"])
def test_redis_without_a_store_is_refused_wherever_it_was_named(folder: Path, source: str) -> None:
    if source == "issuer.toml":
        (folder / source).write_text('redis_url = "redis://r"\n')
    environ = _environ(folder, **({source: "redis://r"} if source.startswith("ISSUER") else {}))
    arguments = {"redis_url": "redis://r"} if source == "argument" else {}
    with pytest.raises(ConfigurationError, match=rf"Redis is named \({source}\) but no store"):
        load(arguments, environ=environ)


@pytest.mark.parametrize(
    ("arguments", "environ", "embedded"),
    [
        ({}, {}, True),
        ({"prefix": "p", "timeout": 1}, {}, True),
        ({}, {"REDIS_URL": "redis://r"}, True),
        ({"redis_url": "none"}, {}, False),
        ({"store_url": "memory://"}, {}, False),
        ({}, {"MONGO_URL": "mongodb://m"}, False),
    ],
)
def test_tags_are_made_by_themselves_only_where_nobody_named_a_server(
    arguments: dict[str, Any], environ: dict[str, str], embedded: bool
) -> None:
    assert load(arguments, environ=environ).embedded is embedded


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), True, "1", None])
def test_seconds_refuses_what_is_no_duration(value: object) -> None:
    with pytest.raises(InvalidArgument):
        seconds(value, "timeout", zero=True)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_PREFIX", "process")
    assert settings.load().prefix == Setting("process", "ISSUER_PREFIX")


def test_a_variable_of_ours_that_means_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ISSUER_STORE;"):
        load(environ={"ISSUER_STORE": "mongodb://localhost", "HOME": "/nonexistent"})


@pytest.mark.parametrize(
    "variable",
    [
        "ISSUER_SERVICE_HOST",
        "ISSUER_SERVICE_PORT",
        "ISSUER_SERVICE_PORT_HTTP",
        "ISSUER_PORT",
        "ISSUER_PORT_80_TCP",
        "ISSUER_PORT_80_TCP_ADDR",
        "ISSUER_REDIS_SERVICE_HOST",
        "ISSUER_REDIS_PORT_6379_TCP_PROTO",
    ],
)
def test_what_kubernetes_sets_beside_a_service_of_our_name_is_let_pass(variable: str) -> None:
    assert load(environ={variable: "10.0.0.1", "HOME": "/nonexistent"}) == load(environ={"HOME": "/nonexistent"})


@pytest.mark.parametrize("variable", ["ISSUER_REDIS_ULR", "ISSUER_PORTS", "ISSUER_HOST", "ISSUER_STORE_PORT_X"])
def test_what_only_looks_like_it_is_refused(variable: str) -> None:
    with pytest.raises(ConfigurationError, match=variable):
        load(environ={variable: "10.0.0.1", "HOME": "/nonexistent"})


@pytest.mark.parametrize("name", ["redis_url", "store_url"])
def test_a_url_without_a_scheme_is_refused_with_that_reason(name: str) -> None:
    with pytest.raises(ConfigurationError, match="scheme"):
        load({name: "localhost:6379"}, environ={"HOME": "/nonexistent"})
