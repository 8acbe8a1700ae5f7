"""TLS to MariaDB: one context for all connections of a store."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence.errors import Misconfigured
from issuer_persistence.opening import open_store
from issuer_persistence.sql.mysql import MySQLStore
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.stores.benches import TIMEOUT

if TYPE_CHECKING:
    from tests.servers.tls import Certificates

pytestmark = pytest.mark.live


@pytest.fixture
def tls_server(certificates: Certificates) -> Iterator[MariaDBServer]:
    """A server that offers TLS."""
    server = MariaDBServer(find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server"))
    for name in ("server.crt", "server.key"):
        copied = shutil.copy(certificates.folder / name, server.directory)
        server.settings[f"ssl-{name[-3:].replace('crt', 'cert')}"] = copied
        if server._user is not None:
            shutil.chown(copied, server._user)
    with server:
        yield server


def test_connections_share_one_context(
    tls_server: MariaDBServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the certificates of the system takes 45 ms of processor time."""
    made = list[object]()
    really = ssl.create_default_context

    def counting(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(options)
        return really(*args, **options)

    monkeypatch.setattr(ssl, "create_default_context", counting)
    for options, contexts in (("", 0), (f"?ssl_ca={certificates.authority}", 1)):
        made.clear()
        store = open_store(f"{tls_server.url}{options}")
        assert isinstance(store, MySQLStore)
        for _ in range(3):
            link = store.connect(TIMEOUT)
            link.cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            assert link.cursor.fetchone()[1]  # without options, too, because the server offers it
            link.close()
        assert len(made) == contexts
        store.close()


@pytest.mark.parametrize(("options", "good"), [("", False), ("&ssl_verify_identity=false", True)])
def test_a_certificate_of_another_host_is_rejected(
    tls_server: MariaDBServer, certificates: Certificates, options: str, *, good: bool
) -> None:
    """Whoever has any certificate of the authority could pass for the database."""
    elsewhere = tls_server.url.replace("127.0.0.1", "127.1")
    store = open_store(f"{elsewhere}?ssl_ca={certificates.authority}{options}")
    with nullcontext() if good else pytest.raises(Misconfigured, match="Hostname mismatch"):
        assert store.get("a", timeout=TIMEOUT) is None
    store.close()


def test_a_certificate_of_another_authority_is_rejected(tls_server: MariaDBServer, certificates: Certificates) -> None:
    store = open_store(f"{tls_server.url}?ssl_ca={certificates.stranger}")
    with pytest.raises(Misconfigured, match="certificate verify failed"):
        store.get("a", timeout=TIMEOUT)
    store.close()
