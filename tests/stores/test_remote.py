"""A store over HTTP: requests and replies that are lost, peers that are no issuer, and connections that end."""

from __future__ import annotations

import json
import os
import selectors
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer.doors.tokens import Scope, line_for, new_token
from issuer_persistence import contract
from issuer_persistence.clock import monotonic
from issuer_persistence.errors import Misconfigured, NotAllowed, StoreError, TagMissing, Unconfirmed
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.reads import ReadLedger, ReadSegments, ReadTag
from issuer_persistence.records import Tag, TagSettings, fresh_version
from issuer_persistence.remote import RemoteStore, channel
from issuer_persistence.remote.channel import Lost
from issuer_persistence.sqlite import SQLiteStore
from tests.forks import in_child
from tests.servers.ports import LOOPBACK
from tests.servers.tls import Certificates, make_certificates
from tests.servers.web import WebServer
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Remote = Callable[[str], RemoteStore]

TIMEOUT = 30.0
LOAD = Purpose("load")


@pytest.fixture
def central(tmp_path: Path) -> Iterator[WebServer]:
    """A server without tokens, whose store has the tag a."""
    path = tmp_path / "central.db"
    with_tag(path)
    server = WebServer(f"sqlite:///{path}")
    yield server
    server.close()


@pytest.fixture
def store(central: WebServer) -> Iterator[RemoteStore]:
    opened = RemoteStore.open(central.url())
    yield opened
    opened.close()


@pytest.fixture
def remote() -> Iterator[Callable[[str], RemoteStore]]:
    """A function that opens a store, which the fixture closes."""
    stores: list[RemoteStore] = []

    def opened(url: str) -> RemoteStore:
        stores.append(RemoteStore.open(url))
        return stores[-1]

    yield opened
    for each in stores:
        each.close()


def with_tag(path: Path, *tags: str, **settings: Any) -> None:
    store = SQLiteStore(path)
    for tag in tags or ("a",):
        store.create(tag, TagSettings(**{"step": 10, **settings}), timeout=TIMEOUT)
    store.close()


def reserve(store: RemoteStore, tag: str = "a", **more: Any) -> Reservation:
    return store.reserve(tag, None, purpose=LOAD, timeout=TIMEOUT, **more)


def ends(store: RemoteStore, tag: str = "a") -> list[tuple[int, int]]:
    return [(each.low, each.high) for each in reversed(store.ledger(tag, newest=100, timeout=TIMEOUT))]


def strikes(times: int) -> Callable[[bytes], bool]:
    """Return a function that is true for the first calls `reserve`."""
    left = [times]

    def strike(body: bytes) -> bool:
        left[0] -= b'"reserve"' in body
        return b'"reserve"' in body and left[0] >= 0

    return strike


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_reservation_that_is_lost_on_its_way_or_back_is_one_range(
    central: WebServer, store: RemoteStore, lost: str
) -> None:
    setattr(central, lost, strikes(1))
    made = [reserve(store) for _ in range(2)]
    assert [(each.low, each.high) for each in made] == ends(store) == [(0, 10), (10, 20)]
    assert made[1].version != made[0].version
    assert store.hand_back(made[1:], 15, timeout=TIMEOUT)


def test_a_reservation_that_is_lost_twice_is_a_gap_at_most(central: WebServer, store: RemoteStore) -> None:
    central.after = strikes(2)
    with pytest.raises(Lost):
        reserve(store)
    assert reserve(store).low == 10


def test_one_that_still_runs_when_it_is_requested_again_is_no_second_range(
    central: WebServer, store: RemoteStore
) -> None:
    sent: list[bytes] = []

    def hold_back(body: bytes) -> bool:
        held = b'"reserve"' in body and b"again" not in body
        sent.extend([body] * held)
        return held

    central.before = hold_back
    assert (made := reserve(store)).high == 10
    # The first request arrives now.
    central.before = None
    with pytest.raises(Unconfirmed):
        store._channel.post("/v1/store", json.loads(sent[0]), TIMEOUT)
    assert ends(store) == [(made.low, made.high)]


# ------------------------------------------------------------------ tokens


@contextmanager
def secured(folder: Path, **given: tuple[list[Scope], list[str]]) -> Iterator[tuple[WebServer, dict[str, RemoteStore]]]:
    """Open a server with these tokens, and a store for each."""
    made = {name: new_token() for name in given}
    file = folder / "tokens.toml"
    file.write_text("".join(line_for(made[name], name, *given[name]) + "\n" for name in given))
    file.chmod(0o600)
    with_tag(folder / "central.db", "a", "b")
    server = WebServer(f"sqlite:///{folder / 'central.db'}", file)
    stores = {name: RemoteStore.open(server.url(token)) for name, token in made.items()}
    yield server, stores
    for store in stores.values():
        store.close()
    server.close()


def test_a_token_reserves_for_its_tags_under_its_name_and_hands_back_its_own(tmp_path: Path) -> None:
    with secured(tmp_path, east=(["reserve"], ["a"]), west=(["reserve"], ["a"])) as (_, by):
        purpose = Purpose("load", "west")
        made = by["east"].reserve("a", 10, purpose=purpose, timeout=TIMEOUT)
        assert [each.application for each in by["east"].ledger("a", newest=9, timeout=TIMEOUT)] == ["east"]
        assert by["west"].hand_back([made], 4, timeout=TIMEOUT) is False
        assert by["east"].hand_back([made], 4, timeout=TIMEOUT) is True
        assert by["west"].reserve("a", 10, purpose=purpose, timeout=TIMEOUT).low == 4
        with pytest.raises(NotAllowed, match="token 'east' is not valid for tag 'b'") as refused:
            reserve(by["east"], "b")
        assert (refused.value.caller, refused.value.scope) == ("east", "reserve")
        assert [each.tag for each in by["east"].tags(count=10, timeout=TIMEOUT)] == ["a"]
        assert by["east"].examine(timeout=TIMEOUT).lasting is True


def test_an_issuer_raises_forbidden_and_shows_its_token_nowhere(tmp_path: Path, remote: Remote) -> None:
    with secured(tmp_path, east=(["reserve"], ["a"])) as (server, by):
        token = by["east"]._channel._headers["authorization"].split()[1]
        with issuer.connect(redis="none", store=server.url(token), scheduler=None, timeout=TIMEOUT) as ids:
            with pytest.raises(issuer.Forbidden) as refused:
                ids.create("c")
            assert (refused.value.caller, refused.value.scope) == ("east", "admin")
            shown = f"{ids!r} {vars(ids)} {ids.doctor()} {refused.value!r}"
        assert token not in shown
        wrong = remote(server.url("issuer_of_nobody"))
        with pytest.raises(Misconfigured, match="the token is unknown") as unknown:
            wrong.get("a", timeout=TIMEOUT)
        assert "issuer_of_nobody" not in f"{unknown.value!r} {unknown.value}"


# ------------------------------------------------------------------ peers


class Peer:
    """Answers each request with the next of these replies, bytes that are sent as they are. None: it hangs up."""

    def __init__(self, *replies: bytes | None, trickle: bool = False) -> None:
        self._socket = socket.create_server((LOOPBACK, 0))
        self.url = f"issuer+http://{LOOPBACK}:{self._socket.getsockname()[1]}"
        self.bodies: list[Any] = []
        self._replies, self._trickle = [*replies], trickle
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while self._replies:
            connection, _ = self._socket.accept()
            with connection, connection.makefile("rb") as requests:
                while self._replies and (head := [*iter(requests.readline, b"\r\n")])[:1] not in ([], [b""]):
                    size = next(int(each.split()[1]) for each in head if each.lower().startswith(b"content-length"))
                    self.bodies.append(json.loads(requests.read(size)))
                    reply = self._replies.pop(0)
                    if reply is None:
                        break
                    self._send(connection, reply)
                    if b"content-length" not in reply:
                        break
        self._socket.close()

    def _send(self, connection: socket.socket, reply: bytes) -> None:
        if not self._trickle:
            connection.sendall(reply)
            return
        try:
            for each in reply:
                connection.sendall(bytes([each]))
                threading.Event().wait(0.05)
        except OSError:
            self._replies.clear()


def http(content: object, status: str = "200 OK") -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"HTTP/1.1 %s\r\ncontent-length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


ENTRY = {
    "tag": "a", "low": 0, "high": 9, "reason": "load", "id": "e", "time": 1, "host": "h", "pid": 1
}  # fmt: skip
RECORD = {
    "tag": "a", "max": 10, "created": 1, "timestamp": 1, "version": "v", "halted": False, "deleted": False, "step": 10,
    "limit": 100, "order": "strict", "description": "",
}  # fmt: skip
RANGE = {"tag": RECORD, "low": 0, "high": 10, "entry": "e", "store_id": "s"}
E = Purpose("load", id="e")
HELD = Reservation(Tag.checked("a", RECORD), 0, 10, "e", "s")

#: Calls, and results that no server of an issuer sends.
SHAPES: list[tuple[Callable[[RemoteStore], object], list[Any]]] = [
    (lambda store: store.get("a", timeout=5), [5, "x", [], {}, {"tag": 5}, True]),
    (lambda store: store.store_id(timeout=5), [None, 5, "x", {}, "X" * 24]),
    (lambda store: store.made_id(timeout=5), [None, []]),
    (lambda store: store.examine(timeout=5), [None, {}, {"version": "1", "lasting": 1, "time": 1}, {
        "version": "1", "lasting": None, "time": "x"
    }]),
    (lambda store: store.witnessed(timeout=5), [None, [], {"a": "1"}, {"a": -1}]),
    (lambda store: store.tags(count=5, timeout=5), [
        None, {}, {"tags": []}, {"tags": 5, "after": None}, {"tags": [5], "after": None}
    ]),
    (lambda store: store.halt("a", timeout=5), [None, 1, "yes"]),
    (lambda store: store.hand_back([HELD], 5, timeout=5), [None, 1, {}]),
    (lambda store: store.segments("a", count=5, timeout=5), [
        None, {}, {"entries": [], "damaged": []}, {"entries": [5], "damaged": [], "last": None},
        {"entries": [], "damaged": [], "last": 5}, {"entries": [], "damaged": [5], "last": None},
    ]),
    (lambda store: store.entries("a", ["e"], timeout=5), [None, {"a": 1}, [5], ["x"]]),
    (lambda store: store.batch([ReadTag("a"), ReadTag("b")], timeout=5), [
        None, [], [{"result": None}] * 3, [{}], [5], [{"error": {}}], {"a": 1}
    ]),
    (lambda store: store.reserve("a", 10, purpose=E, timeout=5), [
        None, {}, {**RANGE, "entry": "other"}, {**RANGE, "low": 10}, {**RANGE, "low": 11}, {**RANGE, "tag": None},
        {**RANGE, "tag": {**RECORD, "tag": "b"}},
    ]),
]  # fmt: skip


def test_a_reply_of_another_form_is_unconfirmed(remote: Remote) -> None:
    for call, results in SHAPES:
        for result in results:
            peer = Peer(http({"result": result}))
            with pytest.raises(Unconfirmed, match="not one of"):
                call(remote(peer.url))
    wrong: tuple[Any, ...] = (
        5, [], "x", None, {}, {"result": [], "error": 5}, {"error": {"kind": "Misconfigured"}},
        {"error": {"kind": "Halted", "message": "x", "values": {"tag": "a"}}},
        {"error": {"kind": "Halted", "message": "x", "values": None}}, {"error": {"kind": "__doc__"}},
    )  # fmt: skip
    for content in wrong:
        with pytest.raises(Unconfirmed, match="not one of"):
            remote(Peer(http(content)).url).get("a", timeout=5)


def test_a_newer_server_may_send_more(remote: Remote) -> None:
    more = {"newer": 1}
    peer = Peer(http({"result": {**RANGE, "tag": RECORD | more} | more} | more))
    assert remote(peer.url).reserve("a", 10, purpose=E, timeout=5).high == 10
    peer = Peer(http({"error": {"kind": "TagMissing", "message": "no tag 'a'", "values": {"tag": "a"} | more} | more}))
    with pytest.raises(TagMissing) as missing:
        remote(peer.url).get("a", timeout=5)
    assert (missing.value.tag, vars(missing.value)) == ("a", {"tag": "a"})


PAGE_OF_A_PROXY = b"<html>welcome to our network</html>"


@pytest.mark.parametrize(
    ("reply", "raises", "said"),
    [
        (http(PAGE_OF_A_PROXY), Lost, "not one of an issuer"),
        (http(b"[" * 100_000), Lost, "not one of an issuer"),
        (http(b'{"result": nul').replace(b": 14", b": 99"), Lost, "not one of an issuer"),
        (http(b"").replace(b": 0", b": 9"), Lost, "not one of an issuer"),
        (http(PAGE_OF_A_PROXY, "502 Bad Gateway"), Lost, "status 502"),
        (http(PAGE_OF_A_PROXY, "504 Gateway Timeout"), Lost, "status 504"),
        (http({"code": "store_unavailable", "detail": "away"}, "503 x"), Unconfirmed, "away"),
        (http({"code": "too_many_requests", "detail": "too many"}, "429 x"), Unconfirmed, "too many"),
        (http(b"", "302 Found\r\nlocation: http://127.0.0.1:1/"), Misconfigured, "status 302; this must be"),
        (http(PAGE_OF_A_PROXY, "404 Not Found"), Misconfigured, "status 404; this must be the address"),
        (http({"code": "not_found", "detail": "no route"}, "404 x"), Misconfigured, "no route; this must be"),
        (http({"code": "wrong_host", "detail": "the Host"}, "403 x"), Misconfigured, "the Host"),
        (http([], "400 Bad Request"), Misconfigured, "status 400"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Lost, "SSH"),
        (None, Lost, "without response"),
    ],
)  # fmt: skip
def test_a_peer_that_is_no_issuer_is_named(
    reply: bytes | None, raises: type[StoreError], said: str, remote: Remote
) -> None:
    with pytest.raises(raises, match=said) as caught:
        remote(Peer(reply).url).get("a", timeout=TIMEOUT)
    assert type(caught.value) is raises


def test_a_range_is_requested_again_from_behind_a_proxy(remote: Remote) -> None:
    peer = Peer(http(PAGE_OF_A_PROXY, "502 Bad Gateway"), http({"result": RANGE}))
    assert remote(peer.url).reserve("a", 10, purpose=E, timeout=TIMEOUT).high == 10
    first, second = peer.bodies
    assert first["arguments"]["id"] == "e"
    assert second["arguments"] == {**first["arguments"], "again": True}
    assert second["timeout"] < first["timeout"]


def test_the_reply_to_another_request_is_nobodys(remote: Remote) -> None:
    """A proxy announces its reply; the reply itself comes when the next request is under way."""
    peer = Peer(b"HTTP/1.1 103 Early Hints\r\ncontent-length: 0\r\n\r\n", http({"result": RECORD}))
    store = remote(peer.url)
    with pytest.raises(Misconfigured, match="status 103"):
        store.get("a", timeout=TIMEOUT)
    assert not store._channel._idle


def test_the_whole_time_of_a_call_is_limited_however_slowly_the_peer_sends(remote: Remote) -> None:
    peer = Peer(http({"result": RECORD | {"description": "x" * 2000}}), trickle=True)
    began = monotonic()
    with pytest.raises(Unconfirmed, match=r"not done within 0\.5 s|timed out") as late:
        remote(peer.url).get("a", timeout=0.5)
    assert not isinstance(late.value, Lost)
    assert monotonic() - began < 60, "the peer sends for 100 s"


@pytest.mark.parametrize("timeout", [1e-9, 1e-300])
def test_a_time_that_is_over_at_once_is_unconfirmed(
    central: WebServer, store: RemoteStore, timeout: float, remote: Remote
) -> None:
    store.get("a", timeout=TIMEOUT)
    for opened in (store, remote(central.url())):
        with pytest.raises(Unconfirmed):
            opened.reserve("a", 1, purpose=LOAD, timeout=timeout)
    assert reserve(store).low == 0


def test_a_dead_address_of_a_name_leaves_time_for_the_next(
    central: WebServer, monkeypatch: pytest.MonkeyPatch, remote: Remote
) -> None:
    found, connect = socket.getaddrinfo, socket.create_connection
    timeouts: list[float] = []

    def dead(place: tuple[str, int], timeout: float) -> socket.socket:
        timeouts.append(timeout)
        if place[0] == "dead":
            raise TimeoutError
        return connect(place, timeout)

    monkeypatch.setattr(socket, "create_connection", dead)
    both = lambda *given, **more: [(0, 0, 0, "", ("dead", 1)), *found(*given, **more)]  # noqa: E731 - used once
    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert remote(central.url()).get("a", timeout=TIMEOUT) is not None
    assert timeouts[0] <= TIMEOUT / 2 < timeouts[1]


# ------------------------------------------------------------------ connections


def test_a_connection_is_used_again_until_the_server_ends_it_or_it_was_idle_for_long(
    central: WebServer, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        store.get("a", timeout=TIMEOUT)
    assert central.connections == 1
    central.close()
    again = WebServer("memory://", port=central.port)
    try:
        assert store.get("a", timeout=TIMEOUT) is None, "the old connection is not tried"
        monkeypatch.setattr(channel, "IDLE_TIME", 0.0)
        store.get("a", timeout=TIMEOUT)
        assert again.connections == 2
    finally:
        again.close()


def test_connections_that_were_idle_for_long_are_closed_although_newer_ones_are_used(
    central: WebServer, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(8) as pool:
        together = threading.Barrier(8)
        central.before = lambda _: bool(together.wait(60)) and False
        assert [*pool.map(lambda _: store.get("a", timeout=TIMEOUT), range(8))]
    central.before = None
    assert len(store._channel._idle) == 8
    connection, since = store._channel._idle.pop()
    monkeypatch.setattr(channel, "IDLE_TIME", monotonic() - since)
    store._channel._idle.append((connection, monotonic() + 60))
    store.get("a", timeout=TIMEOUT)
    assert len(store._channel._idle) == 1


def test_a_request_that_http_cannot_send_is_lost_and_leaves_no_connection_behind(store: RemoteStore) -> None:
    with pytest.raises(Lost, match="Invalid header value"):
        store._channel.post("/v1/store", {}, TIMEOUT, {"x": "a\nb"})
    assert not store._channel._idle


def test_a_call_needs_no_more_files_than_its_connection(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.get("a", timeout=TIMEOUT)
    monkeypatch.setattr(selectors, "DefaultSelector", None)
    store.get("a", timeout=TIMEOUT)


def test_after_close_no_connection_is_left_and_no_call_is_made(central: WebServer, store: RemoteStore) -> None:
    store.get("a", timeout=TIMEOUT)
    central.after = lambda _: store.close()
    store.get("a", timeout=TIMEOUT)
    assert not store._channel._idle
    with pytest.raises(Misconfigured, match="closed"):
        store.get("a", timeout=TIMEOUT)


def test_a_forked_child_has_its_own_connections(central: WebServer, store: RemoteStore) -> None:
    made = [reserve(store)]

    def child() -> list[int]:
        store.after_fork()
        return [reserve(store).low for _ in range(20)]

    ended = in_child(child)
    made += [reserve(store) for _ in range(20)]
    lows = [each.low for each in made] + ended()  # type: ignore[operator]  # a list
    assert sorted(lows) == [*range(0, 410, 10)]
    assert central.connections == 2


def test_a_forked_child_of_an_issuer_reserves_over_its_own_connection(central: WebServer) -> None:
    with issuer.connect(redis="none", store=central.url(), scheduler=None, timeout=TIMEOUT) as ids:
        ids.create("t", order="trend", lease=0, step=10)
        first = ids.take("t", 5)
        ended = in_child(lambda: ids.take("t", 25))
        numbers = first + ids.take("t", 25) + ended()  # type: ignore[operator]  # a list
    assert len({*numbers}) == len(numbers) == 55


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_a_private_authority_is_trusted_if_it_is_named_and_another_one_is_a_mistake(
    tmp_path: Path, certificates: Certificates, remote: Remote
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.folder / "server.crt", certificates.folder / "server.key")
    with_tag(tmp_path / "central.db")
    server = WebServer(f"sqlite:///{tmp_path / 'central.db'}", tls=context)
    try:
        store = remote(f"{server.url()}?ssl_ca={certificates.authority}")
        assert [reserve(store).low for _ in range(3)] == [0, 10, 20]
        assert server.connections == 1, "a connection with TLS is used again"
        for query in (f"?ssl_ca={certificates.stranger}", ""):
            with pytest.raises(issuer.ConfigurationError, match="CERTIFICATE_VERIFY_FAILED"):
                issuer.connect(redis="none", store=server.url() + query, scheduler=None).create("b")
        plain = remote(f"issuer+http://{LOOPBACK}:{server.port}")
        with pytest.raises(Unconfirmed):
            plain.get("a", timeout=TIMEOUT)
        for path in ("/no/such/file", os.fspath(tmp_path)):
            with pytest.raises(Misconfigured, match="ssl_ca"):
                remote(f"{server.url()}?ssl_ca={path}")
    finally:
        server.close()


# ------------------------------------------------------------------ requests


def test_reads_of_several_tags_are_one_request(
    central: WebServer, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "BATCH_TIME", TIMEOUT)
    settings = {f"t{number:03}": TagSettings() for number in range(150)}
    store.create_many(settings, timeout=TIMEOUT)
    reserve(store)
    before = central.requests
    found = store.batch([ReadTag(each) for each in settings], timeout=TIMEOUT)
    assert [each.tag for each in found if isinstance(each, Tag)] == [*settings][:100], "the caller asks for the rest"
    assert central.requests == before + 1
    (ledger, none) = store.batch([ReadLedger("a", 5), ReadLedger("t001", 5)], timeout=TIMEOUT)
    assert ([each.high for each in ledger], none) == ([10], [])  # type: ignore[union-attr]  # no error
    pages = store.batch([ReadSegments("a", 5), ReadSegments("t001", 5)], timeout=TIMEOUT)
    assert [len(each.entries) for each in pages] == [1, 0]  # type: ignore[union-attr]  # no errors
    assert central.requests == before + 3
    store.batch([ReadLedger("a", 101), ReadLedger("t001", 101)], timeout=TIMEOUT)
    assert central.requests == before + 5, "more than the server returns in a batch"


def test_many_ids_are_several_requests(central: WebServer, store: RemoteStore) -> None:
    made = reserve(store)
    ids = [*(fresh_version() for _ in range(2500)), made.entry]
    before = central.requests
    assert [each.id for each in store.own("a", ids, timeout=TIMEOUT)] == [made.entry]
    assert central.requests == before + 3


def test_a_ledger_of_several_pages_is_read_to_its_end(store: RemoteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [reserve(store).high for _ in range(7)]
    monkeypatch.setattr("issuer_persistence.remote.store.PAGE", 3)
    assert [each.high for each in store.ledger("a", newest=6, timeout=TIMEOUT)] == made[:0:-1]
    assert [each.high for each in store.ledger("a", newest=50, timeout=TIMEOUT)] == made[::-1]
    assert store.ledger("a", newest=0, timeout=TIMEOUT) == []


# ------------------------------------------------------------------ URLs


@pytest.mark.parametrize(
    "url",
    [
        "issuer+http://", "issuer+http://T@", "issuer+http://T@:80", "issuer+http://T@h:99999", "issuer+http://T@h:x",
        "issuer+http://T:p@h", "issuer+http://T@h1,h2", "issuer+http://T@a..b", "issuer+http://T@h/p#q",
        "issuer+http://T@h/p q", "issuer+http://T@h/é", "issuer+http://T@é", "issuer+http://T%0ax@h",
        "issuer+http://T%20x@h", "issuer+http://T%C3%A9@h", "issuer+http://T@h?ssl_ca=/x", "issuer+https://T@h?x=1",
        "issuer+https://T@h?ssl_ca=/x&y=1", "issuer+http://T@[h",
    ],
)  # fmt: skip
def test_a_url_with_a_mistake_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        RemoteStore.open(url)
    assert "T" not in str(refused.value).replace("TOKEN", "")


def test_what_a_url_may_have() -> None:
    for url, shown in (
        ("issuer+http://T@h", "issuer+http://h"),
        ("issuer+http://h:8000/", "issuer+http://h:8000"),
        ("issuer+http://T%2F@[::1]:8000/a/b/", "issuer+http://[::1]:8000/a/b"),
        ("issuer+http://T#[x@h", "issuer+http://h"),
        ("issuer+https://T@h.example:1", "issuer+https://h.example:1"),
    ):
        assert RemoteStore.open(url).url == shown


def test_a_prefix_is_put_before_the_path(remote: Remote) -> None:
    heads: list[bytes] = []
    server = socket.create_server((LOOPBACK, 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            heads.append(connection.recv(65_536))
            connection.sendall(http({"result": None}))

    threading.Thread(target=serve, daemon=True).start()
    url = f"issuer+http://T%2Fx@{LOOPBACK}:{server.getsockname()[1]}/ids/"
    assert remote(url).get("a", timeout=TIMEOUT) is None
    until(lambda: heads)
    assert heads[0].startswith(b"POST /ids/v1/store HTTP/1.1\r\n")
    assert b"authorization: Bearer T/x\r\n" in heads[0]
    server.close()


# ------------------------------------------------------------------ issuers


def test_a_chain_of_two_reserves_at_its_end_and_repeats_nothing(tmp_path: Path, remote: Remote) -> None:
    """A region's server, whose store is the central one, serves a branch in turn."""
    with secured(tmp_path, east=(["admin"], ["*"])) as (_, by):
        file = tmp_path / "branches.toml"
        token = new_token()
        file.write_text(line_for(token, "branch", ["reserve"], ["t"]) + "\n")
        file.chmod(0o600)
        east = WebServer(by["east"], file)
        try:
            with (
                issuer.connect(redis="none", store=east.url(token), scheduler=None, timeout=TIMEOUT) as branch,
                issuer.connect(redis="none", store=by["east"], scheduler=None, timeout=TIMEOUT) as region,
            ):
                region.create("t", order="trend", lease=0, step=10)
                numbers = [number for _ in range(20) for ids in (branch, region) for number in ids.take("t", 7)]
                assert len({*numbers}) == len(numbers) == 280
                assert {each.application for each in region.segments("t").entries} == {"east"}
                # An id goes through to the end: what is lost between the two is one range, and is handed back.
                store = remote(east.url(token))
                east.after = strikes(1)
                made = reserve(store, "t")
                assert ends(store, "t")[-1] == (made.low, made.high)
                assert store.hand_back([made], made.low + 4, timeout=TIMEOUT)
                assert reserve(store, "t").low == made.low + 4
        finally:
            east.close()


def test_an_adapted_step_grows_with_one_region_though_another_one_draws(tmp_path: Path) -> None:
    """Each has its own Redis, so the segments of the other one are no sign that its own Redis has lost some."""
    from issuer.core.supply.adapt import adapt

    with secured(tmp_path, east=(["admin"], ["*"]), west=(["reserve"], ["*"])) as (_, by):
        settings = TagSettings(step_mode="auto", step=10, min_step=10, max_step=1000)
        by["east"].create("t", settings, timeout=TIMEOUT)
        record = None
        for _ in range(3):
            for name in ("east", "west"):
                record = by[name].reserve("t", None, purpose=Purpose("load", born=name), timeout=TIMEOUT).tag
        assert record is not None

        def steps_after(born: str) -> int:
            work = adapt(replace(record), lambda entry: entry.born == born)
            answer: Any = None
            try:
                while True:
                    answer = work.send(answer).question(by["west"], TIMEOUT)  # type: ignore[union-attr]  # an Ask
            except StopIteration:
                found = by["west"].get("t", timeout=TIMEOUT)
                assert found is not None
                return found.step

        assert steps_after("later") == 10, "a Redis that has lost its data"
        assert steps_after("east") == 20
