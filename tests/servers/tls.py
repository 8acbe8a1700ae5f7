"""Certificates of our own for servers that speak TLS, made by the openssl program.

They are valid for loopback only, and strict enough for Python 3.13, which asks for key usage and key identifiers.
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from tests.servers.absent import needed
from tests.servers.binaries import find_servers

_DAYS = "30"

# A file of our own, since what openssl.cnf says differs from one system to the next.
_CONFIGURATION = """
[req]
distinguished_name = name
prompt = no
[name]
CN = issuer-test
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[leaf]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True)
class Certificates:
    """A folder that holds an authority, and a server's and a client's certificate that it signed."""

    folder: Path

    @property
    def authority(self) -> Path:
        return self.folder / "authority.crt"

    @property
    def stranger(self) -> Path:
        """An authority that has signed nothing here."""
        return self.folder / "stranger.crt"

    def query(self, *, client: bool) -> str:
        """Return the part of a rediss:// URL that trusts the authority, and shows the client's certificate."""
        parameters = {"ssl_ca_certs": self.authority}
        if client:
            parameters |= {"ssl_certfile": self.folder / "client.crt", "ssl_keyfile": self.folder / "client.key"}
        return urlencode(parameters, safe="/")

    def server_options(self) -> list[str]:
        """Return the server's command line options that name the certificates."""
        names = {"cert-file": "server.crt", "key-file": "server.key", "ca-cert-file": "authority.crt"}
        return [part for option, name in names.items() for part in (f"--tls-{option}", str(self.folder / name))]


def tls_server() -> Path | None:
    """Return the preferred server that was built with TLS; the distributions' are."""
    return next((path for path in find_servers().values() if _speaks_tls(path)), None)


def make_certificates(folder: Path) -> Certificates:
    """Make them; the keys are elliptic, which takes no time."""
    (folder / "openssl.cnf").write_text(_CONFIGURATION)
    for name in ("authority", "stranger"):
        _key(folder, name)
        _run(folder, "req", "-x509", "-new", "-config", "openssl.cnf", "-extensions", "authority", "-days", _DAYS,
             "-key", f"{name}.key", "-out", f"{name}.crt")  # fmt: skip
    for name in ("server", "client"):
        _key(folder, name)
        # Another name than the authority's: a certificate whose issuer and subject agree counts as self-signed.
        _run(folder, "req", "-new", "-config", "openssl.cnf", "-subj", f"/CN={name}",
             "-key", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        _run(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "authority.crt", "-CAkey", "authority.key",
             "-CAcreateserial", "-extfile", "openssl.cnf", "-extensions", "leaf", "-days", _DAYS,
             "-out", f"{name}.crt")  # fmt: skip
    return Certificates(folder)


def _key(folder: Path, name: str) -> None:
    _run(folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run([needed("openssl"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _speaks_tls(binary: Path) -> bool:
    # One built with TLS misses a certificate. Of those built without it Redis doesn't know the option, and Valkey knows
    # it, but can't do as it says. Neither comes as far as to listen.
    command = [str(binary), "--tls-port", "1", "--port", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return "No tls-cert-file configured" in done.stdout
