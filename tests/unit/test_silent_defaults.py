"""Nothing that was forgotten makes a process count from 1 in a file of its own without a word."""

import logging
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import wiring
from issuer.settings import STORE_VARIABLES, load

NAMED = {"ISSUER_STORE_URL": "memory://x"}


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that has told nothing yet, in an empty home."""
    monkeypatch.setattr(wiring, "_told_of_default", False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("empty", ["", "  "])
def test_a_variable_that_is_empty_is_refused(empty: str) -> None:
    ours = [f"ISSUER_{name.upper()}" for name in load(environ={}).named()]
    for name in (*ours, "ISSUER_CONFIG", *STORE_VARIABLES):
        with pytest.raises(issuer.ConfigurationError, match=f"{name} is empty"):
            load(environ={name: empty})
    with pytest.raises(issuer.ConfigurationError, match="REDIS_URL is empty"):
        load(environ={**NAMED, "REDIS_URL": empty})


def test_variables_of_others_that_nobody_looks_at_may_be_empty() -> None:
    assert load(environ={"REDIS_URL": ""}).embedded
    assert load(environ={**NAMED, "MONGODB_URI": ""}).store_url.value == "memory://x"


@pytest.mark.parametrize("make", [issuer.connect, issuer.aconnect])
def test_what_a_missing_variable_gives_is_refused(make: Any) -> None:
    for given in ({"redis": None}, {"store": None}, {"redis": None, "store": None}, {"redis": "none", "store": None}):
        with pytest.raises(issuer.ConfigurationError, match="is None: leave it out"):
            make(**given)
    with pytest.raises(issuer.ConfigurationError, match="no store is named"):
        make(redis="none")


def test_the_default_is_told_once_by_the_name_of_its_file(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        issuer.connect(scheduler=None).close()
        issuer.connect(scheduler=None, store="memory://").close()
    (told,) = caplog.records
    assert str(tmp_path / "issuer" / "issuer.db") in told.getMessage()


@pytest.mark.parametrize("said", ["1", "true", "yes"])
def test_the_default_is_refused_where_servers_are_required(said: str) -> None:
    with pytest.raises(issuer.ConfigurationError, match=r"require_servers \(ISSUER_REQUIRE_SERVERS\)"):
        load(environ={"ISSUER_REQUIRE_SERVERS": said})
    assert load(environ={"ISSUER_REQUIRE_SERVERS": said, **NAMED}).require_servers.value
    assert load(environ={"ISSUER_REQUIRE_SERVERS": "0"}).embedded
    with pytest.raises(issuer.ConfigurationError, match="true or false"):
        load(environ={"ISSUER_REQUIRE_SERVERS": "perhaps"})


def test_relative_paths_of_a_settings_file_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etc").mkdir()
    text = 'store_url = "sqlite:///ids.db"\njournal = "j"\nmachine_files = "m"\n'
    (tmp_path / "etc" / "issuer.toml").write_text(text)
    for here, named in ((tmp_path, "etc/issuer.toml"), (tmp_path / "etc", "issuer.toml"), (tmp_path / "etc", None)):
        monkeypatch.chdir(here)
        found = load(config=named, environ={})
        etc = tmp_path / "etc"
        values = (found.store_url.value, found.journal.value, found.machine_files.value)
        assert values == (f"sqlite:///{etc}/ids.db", f"{etc}/j", f"{etc}/m")


def test_absolute_paths_and_those_of_variables_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "issuer.toml").write_text('store_url = "sqlite:////var/ids.db"\njournal = "/var/j"\n')
    found = load(environ={})
    assert (found.store_url.value, found.journal.value) == ("sqlite:////var/ids.db", "/var/j")
    assert load(environ={"ISSUER_STORE_URL": "sqlite:///ids.db"}).store_url.value == "sqlite:///ids.db"
