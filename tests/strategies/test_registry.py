"""How strategies are found by name, how a process names itself, and the file of a leased machine number."""

import sys
from pathlib import Path
from typing import Any

import pytest

from issuer.errors import ConfigurationError, SchemeError
from issuer.instance import own_ip
from issuer.strategies import Instance, Strategy, register, strategy_names
from tests.refusals import refused
from tests.strategies.hosts import Desk


@pytest.mark.covers("3.6")
def test_an_installed_package_brings_strategies_by_its_entry_points(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "brought.py").write_text(
        "from issuer.strategies import Strategy\n"
        "class Tens(Strategy):\n"
        "    def generate(self, n):\n"
        "        return [10 * each for each in range(1, n + 1)]\n"
    )
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[issuer.strategies]\ntens = brought:Tens\nlost = nowhere:Strategy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"tens", "lost"} <= set(strategy_names())
    with Desk("tens") as desk:
        assert desk.take(3) == [10, 20, 30]
    refused(ConfigurationError, "^strategy: the entry point of 'lost' can't be loaded", Desk, "lost")
    sys.modules.pop("brought", None)


def test_what_cannot_be_registered_is_refused() -> None:
    for name in ("segment", "snowflake"):
        refused(ConfigurationError, f"'{name}' is built in", register, name, Strategy)
    refused(ConfigurationError, "a strategy must have a name", register, "", Strategy)
    refused(ConfigurationError, "must be a function of a Context, not None", register, "evens", None)
    refused(SchemeError, r"^strategy: unknown strategy 'leaf'; the strategies are .*segment, snowflake", Desk, "leaf")


@pytest.mark.covers("3.35", "3.37")
def test_the_key_is_application_port_and_ip_as_one_number_and_the_file_is_named_by_it() -> None:
    wholes = {"192.168.0.94": 3232235614, "192.168.0.222": 3232235742, "10.0.0.1": 167772161, "::1": 1}
    for ip, whole in wholes.items():
        instance = Instance("sequence-client", 8112, ip)
        assert instance.key == f"sequence-client.8112.{whole}"
        assert instance.file == f"sequence-client:8112:{whole}.properties"


@pytest.mark.covers("3.50")
def test_what_a_registry_says_makes_the_same_key_as_what_is_found_here() -> None:
    from_registry = {"application": "orders-service", "port": 8080, "ip": own_ip()}
    assert Instance(**from_registry).key == Instance("orders-service", 8080).key  # type: ignore[arg-type]  # as it comes


def test_an_instance_that_makes_no_key_is_refused() -> None:
    wrong: list[tuple[str, str, list[Any]]] = [
        ("application", "application must consist of", ["", "a.b", "a/b"]),
        *((name, f"{name} must be a text, not ", [5]) for name in ("application", "ip", "directory")),
        ("port", "port must be a whole number, not ", ["x", True, 1.0, None]),
        ("machine", "machine must be a whole number, not ", ["7", True]),
        ("rack", "rack must be a whole number, not ", [1.0]),
        ("port", "port must be a whole number 0..65535, not ", [-1, 65_536]),
        ("ip", "ip must be an address such as 192.168.0.94, not ", ["192.168.0", "localhost"]),
    ]
    for name, problem, values in wrong:
        for value in values:
            assert repr(value) in str(refused(ConfigurationError, problem, Instance, **{name: value}))
