"""Sockets that a service manager such as systemd passes to a server, and reports of the server to the service manager.

The protocols are those of sd_listen_fds(3) and sd_notify(3).
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

from issuer.errors import ConfigurationError

#: Descriptor of the first socket that a service manager passes.
_FIRST: Final = 3
#: The service manager gives each socket one of these names, which are those of the protocols.
_NAMES: Final = ("http", "resp")
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)

#: Seconds for which a report waits if the service manager reads none.
_PATIENCE: Final = 1.0


def passed_sockets() -> dict[str, socket.socket]:
    """Return the listening sockets that the service manager has opened for this process, by name of the protocol.

    They stay open while the server restarts, so connections wait for the next server and are not refused. Raises
    ConfigurationError if a socket has an unknown name, or does not listen.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return {}
    found: dict[str, socket.socket] = {}
    names = os.environ.get("LISTEN_FDNAMES", "").split(":")
    for at in range(int(os.environ.get("LISTEN_FDS", "0"))):
        name = names[at] if at < len(names) else ""
        if name not in _NAMES or name in found:
            raise ConfigurationError(
                f"the service manager passes a socket with the name {name!r}: set FileDescriptorName=http or "
                "FileDescriptorName=resp in its unit, each once"
            )
        passed = found[name] = socket.socket(fileno=_FIRST + at)
        listens = passed.family in _FAMILIES and passed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if not listens or passed.type != socket.SOCK_STREAM:
            raise ConfigurationError(
                f"the socket {name!r} of the service manager does not listen: use ListenStream= and Accept=no"
            )
    return found


def notify(*states: str) -> None:
    """Report states, such as READY=1, to the service manager. Without one, do nothing."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.settimeout(_PATIENCE)
        to.sendto("\n".join(states).encode(), "\0" + address[1:] if address.startswith("@") else address)
