"""Identity of a process: who draws, for the ledger and for strategies."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from ipaddress import ip_address

from issuer.errors import ConfigurationError, brief


@dataclass(frozen=True, slots=True)
class Instance:
    """Identity of this process. It can come from the settings or from a service registry.

    Attributes:
        application: Label of the service: letters a-z, digits, "-" and "_".
        port: Port that distinguishes this process from others of the host, 0..65535. 0 means no port.
        ip: IP address. "" means the address of this host.
        machine: Fixed machine number. If the layout has racks, this is the worker number. None if it is not fixed.
        rack: Fixed rack number. None if it is not fixed.
        directory: Directory for the files in which a strategy remembers its machine number and the last usable
            timestamp. "" means the directory for temporary files; the Snowflake option machine=file does not accept "".

    Raises:
        ConfigurationError: A value is invalid.
    """

    application: str = "issuer"
    port: int = 0
    ip: str = ""
    machine: int | None = None
    rack: int | None = None
    directory: str = ""

    def __post_init__(self) -> None:
        """Check the types, and the values that become parts of keys and file names."""
        for setting, kind in (("application", str), ("ip", str), ("directory", (str, os.PathLike))):
            text: object = getattr(self, setting)
            if not isinstance(text, kind):
                raise ConfigurationError(f"{setting} must be a text, not {brief(text)}")
        for setting in ("port", "machine", "rack"):
            number: object = getattr(self, setting)
            missing = number is None and setting != "port"
            if not missing and (isinstance(number, bool) or not isinstance(number, int)):
                raise ConfigurationError(f"{setting} must be a whole number, not {brief(number)}")
        name = self.application
        if not name or not name.isascii() or not all(letter.isalnum() or letter in "-_" for letter in name):
            raise ConfigurationError(f"application must consist of letters, digits, - and _, not {brief(name)}")
        if not 0 <= self.port < 1 << 16:
            raise ConfigurationError(f"port must be a whole number 0..65535, not {brief(self.port)}")
        if self.ip:
            self.address()

    def address(self) -> int:
        """Return the IP address as a whole number. Example: 3232235614 for 192.168.0.94.

        Raises:
            ConfigurationError: `ip` is not an IP address.
        """
        try:
            return int(ip_address(self.ip or own_ip()))
        except ValueError as error:
            raise ConfigurationError(f"ip must be an address such as 192.168.0.94, not {brief(self.ip)}") from error

    @property
    def key(self) -> str:
        """Name of this process as a holder of a machine number: application.port.ip. `ip` is a whole number."""
        return f"{self.application}.{self.port}.{self.address()}"

    @property
    def file(self) -> str:
        """Name of the file in which this process keeps its machine number, with the Snowflake option machine=file.

        The name is `application:port:ip.properties`. `ip` is a whole number.
        """
        return f"{self.application}:{self.port}:{self.address()}.properties"


def own_ip() -> str:
    """Return the IP address of this host in its network. 127.0.0.1 if the host has no network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that no host has, by RFC 5737
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def version() -> str:
    """Return the version of the installed package. "unknown" if it is not installed.

    The first call imports modules. So hold `issuer.forks.no_fork()` around it.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("segment-issuer")
    except PackageNotFoundError:  # a checkout that is not installed
        return "unknown"
