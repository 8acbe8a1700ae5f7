"""Copies of the project `shop`, on each database."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.mariadb import MariaDBServer
from tests.servers.postgres import PostgresServer

SHOP = Path(__file__).parent / "shop"
SERVERS = {"sqlite3": "", "postgresql": "postgres_server", "mysql": "mariadb_server"}


@dataclass
class Shop:
    """A copy of the project. `environment`: variables for its programs."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its programs: without this machine's settings of the issuer."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ISSUER_", "DJANGO_"))}
        home = {"HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder)}
        root = str(Path(__file__).parents[3])
        paths = {"PYTHONPATH": os.pathsep.join([root, f"{root}/persistence"])}
        return {**kept, **home, **paths, **self.environment}

    def run(self, *line: object, status: int = 0, **variables: str) -> str:
        """Run a Python program in the project. Return what it has written.

        Args:
            line: The program and its arguments: a file, or "-c" and a text, or "-m" and a module.
            status: The expected exit status.
            variables: More environment variables.
        """
        done = subprocess.run(
            [sys.executable, "-W", "error", *map(str, line)],
            cwd=self.folder,
            env=self.variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == status, done.stdout
        return done.stdout

    def manage(self, *line: object, status: int = 0, **variables: str) -> str:
        """Run a command of `manage.py`. Return what it has written."""
        return self.run("manage.py", *line, status=status, **variables)

    def shell(self, program: str, **variables: str) -> str:
        """Run a program with the project's models. Return the last line that it has written."""
        given = f"import django; django.setup()\nfrom orders.models import *; from legacy.models import *\n{program}"
        shown = self.run("-c", given, status=0, DJANGO_SETTINGS_MODULE="settings", **variables)
        return shown.rstrip().rpartition("\n")[2]

    def change(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file of the project."""
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A copy of the project, on SQLite."""
    return Shop(Path(shutil.copytree(SHOP, tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))))


#: Opens the issuers of production as the program starts, before Django knows whether tests run.
OPENS = """
from django.apps import AppConfig


class Orders(AppConfig):
    name = "orders"

    def ready(self):
        from issuer.contrib.django import ids

        for using in ("default", "eu"):
            assert not ids(using).closed
"""


@pytest.fixture
def production(shop: Shop) -> Iterator[None]:
    """What tests of the project must not touch: variables, journals, and issuers that were open before the tests."""
    journals = [shop.folder / "journal-of-settings", shop.folder / "journal-of-variables"]
    shop.change("settings.py", "ISSUER = {", f"ISSUER = {{'journal': {str(journals[0])!r}, ")
    (shop.folder / "orders" / "apps.py").write_text(OPENS)
    shop.environment |= {
        "ISSUER_JOURNAL": str(journals[1]),
        "ISSUER_REDIS_URL": "redis://production.invalid",
        "ISSUER_STORE_URL": "mongodb://production.invalid/issuer",
        "ISSUER_PREFIX": "production",
    }
    yield
    assert [each for each in (*journals, *shop.folder.glob("issuer*.sqlite3")) if each.exists()] == []


@pytest.fixture(params=SERVERS)
def any_shop(request: pytest.FixtureRequest, shop: Shop) -> Shop:
    """A copy of the project, on each database in turn."""
    if request.param == "sqlite3":
        return shop
    name = f"s{secrets.token_hex(4)}"
    server: PostgresServer | MariaDBServer = request.getfixturevalue(SERVERS[request.param])
    for database in ("shop", "eu"):
        server.execute(f"CREATE DATABASE {name}_{database}")
    store = f"{server.url.rpartition('/')[0]}/{name}_shop"  # in the database of the project
    port = str(server.port)
    shop.environment |= {"SHOP_ENGINE": request.param, "SHOP_PORT": port, "SHOP_NAME": name, "SHOP_STORE": store}
    return shop
