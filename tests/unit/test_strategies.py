"""How strategies are found by name, how a process names itself, and the file of a leased machine number."""

from __future__ import annotations

import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from issuer.errors import ConfigurationError, SchemeError
from issuer.strategies import Instance, Strategy, known, register, registry
from issuer.strategies.contract import own_ip
from tests.strategies import Desk

# ------------------------------------------------------------------------------------------------ by name


class Evens(Strategy):
    """A strategy of the user's own, as docs/snowflake.md has it."""

    last = 0

    def generate(self, n: int) -> list[int]:
        numbers = list(range(self.last + 2, self.last + 2 * n + 1, 2))
        self.last = numbers[-1]
        return numbers


@pytest.mark.covers("3.6")
def test_a_registered_strategy_serves_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    register("evens", Evens)
    assert known() == ["evens", "segment", "snowflake"]
    with Desk("evens") as desk:
        assert [desk.next(), desk.next(), *desk.take(2)] == [2, 4, 6, 8]


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
    assert {"tens", "lost"} <= set(known())
    with Desk("tens") as desk:
        assert desk.take(3) == [10, 20, 30]
    with pytest.raises(ConfigurationError, match=r"^strategy: the entry point of 'lost' can't be loaded"):
        Desk("lost")
    sys.modules.pop("brought", None)


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SchemeError, match=r"^strategy: no strategy 'leaf'; there are .*segment, snowflake"):
        Desk("leaf")


@pytest.mark.parametrize(
    ("name", "factory", "problem"),
    [
        ("segment", Evens, "'segment' is built in"),
        ("snowflake", Evens, "'snowflake' is built in"),
        ("", Evens, "a strategy has a name"),
        ("evens", None, "None can't be"),
    ],
)
def test_what_cannot_be_registered_is_refused(name: str, factory: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        register(name, factory)


def test_segment_needs_a_counter_and_has_no_options() -> None:
    with pytest.raises(ConfigurationError, match="needs the tag's counter"):
        Desk("segment")
    with pytest.raises(ConfigurationError, match="no option 'step'; there are none"):
        Desk("segment", {"step": 5})


# ------------------------------------------------------------------------------------------------ instances


@pytest.mark.covers("3.35")
@pytest.mark.parametrize(
    ("ip", "whole"),
    [("192.168.0.94", 3232235614), ("192.168.0.222", 3232235742), ("10.0.0.1", 167772161), ("::1", 1)],
)
def test_the_key_is_application_port_and_ip_as_one_number(ip: str, whole: int) -> None:
    instance = Instance("sequence-client", 8112, ip)
    assert instance.key == f"sequence-client.8112.{whole}"
    assert int(ip_address(ip)) == whole


@pytest.mark.covers("3.37")
def test_the_file_is_named_with_colons() -> None:
    assert Instance("sequence-client", 8112, "192.168.0.222").file == "sequence-client:8112:3232235742.properties"


@pytest.mark.covers("3.50")
def test_what_a_registry_says_makes_the_same_key_as_what_is_found_here() -> None:
    from_registry = {"application": "orders-service", "port": 8080, "ip": own_ip()}
    assert Instance(**from_registry).key == Instance("orders-service", 8080).key  # type: ignore[arg-type]  # as it comes


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"application": ""}, "application"),
        ({"application": "a.b"}, "application is made of"),
        ({"application": "a/b"}, "application is made of"),
        ({"application": 5}, "application is a text, not 5"),
        ({"ip": 5}, "ip is a text, not 5"),
        ({"directory": 5}, "directory is a text, not 5"),
        ({"port": "x"}, "port is a whole number, not 'x'"),
        ({"port": True}, "port is a whole number, not True"),
        ({"port": 1.0}, r"port is a whole number, not 1\.0"),
        ({"port": None}, "port is a whole number, not None"),
        ({"machine": "7"}, "machine is a whole number, not '7'"),
        ({"machine": True}, "machine is a whole number, not True"),
        ({"rack": 1.0}, r"rack is a whole number, not 1\.0"),
        ({"port": -1}, "port is a whole number 0..65535, not -1"),
        ({"port": 65_536}, "port"),
        ({"ip": "192.168.0"}, "ip is an address like 192.168.0.94, not '192.168.0'"),
        ({"ip": "localhost"}, "ip"),
    ],
)
def test_an_instance_that_makes_no_key_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Instance(**given)
