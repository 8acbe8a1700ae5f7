"""python -m tests.bench.crowd PORT KIND COUNT TOKEN: that many clients, each of which sends at most 1 KB a second.

None of them reads. Who is disconnected comes back ten seconds later.
"""

import select
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count as counted

from tests.servers.ports import LOOPBACK

#: Bytes that a client sends at most, once a second.
A_SECOND = 1024
#: Seconds after which a client that was disconnected connects again.
AWAY = 10.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What a client sends: `first` when it has connected, `then` once a second.

    `http`: whether it goes to the HTTP door. `known`: whether it sends a token.
    """

    http: bool
    first: bytes
    then: bytes = b""
    known: bool = False


def _many(one: bytes) -> bytes:
    return one * (A_SECOND // len(one))


_DRAW = b"POST /v1/tags/crowd/next HTTP/1.1\r\nHost: localhost\r\n"
_TOKEN = b"Authorization: Bearer %(token)s\r\n"
_TAKE = b"POST /v1/tags/crowd/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_AUTH = b"AUTH %(token)s\r\n"

#: The kinds of clients, by name. `idle` ones are what the others are compared with.
KINDS = {
    "HTTP, idle": Kind(http=True, first=b""),
    "HTTP, incomplete heads": Kind(
        http=True, first=b"GET / HTTP/1.1\r\nHost: localhost\r\n", then=b"A: " + b"a" * 1019 + b"\r\n"
    ),
    "HTTP, unread /docs": Kind(http=True, first=_many(b"GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    "HTTP, unread /livez": Kind(http=True, first=_many(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    "HTTP, unread 401": Kind(http=True, first=_many(_DRAW + b"\r\n")),
    "HTTP, unread 404": Kind(http=True, first=_many(b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    "HTTP, token, incomplete bodies": Kind(
        http=True, first=_TAKE + _TOKEN + b'Content-Length: 60000\r\n\r\n{"n": ', then=b" " * A_SECOND, known=True
    ),
    "HTTP, token, unread take": Kind(
        http=True, first=_TAKE + _TOKEN + b'Content-Length: 14\r\n\r\n{"n": 1000000}', known=True
    ),
    "RESP, idle": Kind(http=False, first=b""),
    "RESP, lines": Kind(http=False, first=b"", then=_many(b"A\n")),
    "RESP, incomplete AUTH": Kind(http=False, first=b"*2\r\n$4\r\nAUTH\r\n$16000\r\n", then=b"a" * A_SECOND),
    "RESP, token, incomplete commands": Kind(
        http=False, first=_AUTH + b"*1000\r\n$4\r\nMGET\r\n", then=b"$990\r\n" + b"a" * 990 + b"\r\n", known=True
    ),
    "RESP, token, MULTI": Kind(http=False, first=_AUTH + b"MULTI\r\n", then=_many(b"INCR a\n"), known=True),
    "RESP, token, unread COMMAND": Kind(http=False, first=_AUTH + _many(b"COMMAND DOCS INCR\r\n")[:900], known=True),
    "RESP, token, unread INCR": Kind(http=False, first=_AUTH + _many(b"INCR crowd\r\n")[:900], known=True),
}


def _connected(port: int, first: bytes) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    made.connect((LOOPBACK, port))
    made.setblocking(False)
    with suppress(OSError):
        made.send(first)
    return made


def _closed(client: socket.socket) -> bool:
    """Return whether the server has closed the connection. Nothing is read."""
    looking = select.poll()
    looking.register(client, select.POLLRDHUP)
    return bool(looking.poll(0))


def main(port: int, kind: Kind, count: int, token: bytes) -> None:
    """Connect the clients, say so in a line, and let each have its turn once a second until the end."""
    first, then = (each.replace(b"%(token)s", token) for each in (kind.first, kind.then))
    clients = [_connected(port, first) for _ in range(count)]
    back = [0.0] * count
    print("connected", flush=True)
    began = time.monotonic()
    for number in counted():
        place = number % count
        time.sleep(max(0.0, began + number / count - time.monotonic()))
        now = time.monotonic()
        if back[place]:
            if now >= back[place]:
                back[place] = 0.0
                clients[place] = _connected(port, first)
        elif _closed(clients[place]):
            clients[place].close()
            back[place] = now + AWAY
        elif then:
            with suppress(OSError):  # the server reads no more from it
                clients[place].send(then)


if __name__ == "__main__":
    main(int(sys.argv[1]), KINDS[sys.argv[2]], int(sys.argv[3]), sys.argv[4].encode())
