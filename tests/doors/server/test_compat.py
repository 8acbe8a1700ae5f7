"""`issuer serve --compat`: clients of other servers as they speak, byte by byte, and what the log has of them."""

import socket
from pathlib import Path

import pytest

from issuer.doors.tokens import line_for, new_token
from tests.cli.conftest import Cli
from tests.doors.server.conftest import Serve, Served

pytestmark = pytest.mark.live

#: What the Java client of tinyid sends, apart from its two parameters.
JAVA = (
    "POST {prefix}/tinyid/id/nextSegmentIdSimple?token={token}&bizType={tag} HTTP/1.1\r\n"
    "User-Agent: Java/1.8.0_202\r\nHost: {host}\r\nAccept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2\r\n"
    "Connection: keep-alive\r\nContent-type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n\r\n"
)


def spoken(served: Served, *, token: str, tag: str, prefix: str = "", times: int = 1) -> list[tuple[str, str]]:
    """Speak as the Java client does, on one connection; return status and body of each reply."""
    found = []
    with socket.create_connection(("127.0.0.1", served.port()), timeout=120) as connection:
        for _ in range(times):
            host = f"127.0.0.1:{served.port()}"
            connection.sendall(JAVA.format(prefix=prefix, token=token, tag=tag, host=host).encode())
            with connection.makefile("rb") as answer:
                status = answer.readline().decode().split(" ")[1]
                length = 0
                while line := answer.readline().strip().decode().lower():
                    if line.startswith("content-length:"):
                        length = int(line.partition(":")[2])
                found.append((status, answer.read(length).decode()))
    return found


PATIENT = {"ISSUER_COMPAT_TIMEOUT": "60"}


@pytest.mark.covers("U.17")
def test_the_java_client_of_tinyid_gets_its_segments(serve: Serve, cli: Cli, store: str) -> None:
    cli("--store", store, "create", "order", "--order", "trend", "--step", "10000")
    served = serve("--compat", "tinyid", "--compat", "leaf", before=("--store", store), env=PATIENT)
    assert spoken(served, token="any", tag="order", times=3) == [
        ("200", "0,2000,10000,1,0"),
        ("200", "10000,12000,20000,1,0"),
        ("200", "20000,22000,30000,1,0"),
    ]
    assert spoken(served, token="any", tag="nope") == [("200", "")]
    assert served.http.get("/api/segment/get/order").text.isdecimal()
    assert served.http.get("/api/leaf?biz_tag=order").status_code == 404


def test_tokens_of_tinyid_stand_in_queries_and_are_in_no_log(
    serve: Serve, cli: Cli, store: str, tmp_path: Path
) -> None:
    cli("--store", store, "create", "order", "--order", "trend", "--step", "10000")
    token, file = new_token(), tmp_path / "tokens.toml"
    file.write_text(line_for(token, "java", ["issue"], ["order"]) + "\n")
    env = {"ISSUER_COMPAT": "tinyid, leaf-go", "ISSUER_COMPAT_PREFIX": "/gateway/", "ISSUER_TOKENS": str(file)}
    served = serve("-v", before=("--store", store), env=PATIENT | env)
    assert spoken(served, token=token, tag="order", prefix="/gateway", times=2) == [
        ("200", "0,2000,10000,1,0"),
        ("200", "10000,12000,20000,1,0"),
    ]
    assert spoken(served, token=f"{token}x", tag="order", prefix="/gateway") == [("200", "")]
    assert spoken(served, token=token, tag="order") == [("404", served.http.get("/nope").text)]
    log = served.told("authentication failed over http")
    assert "POST /gateway/tinyid/id/nextSegmentIdSimple 200" in log
    assert token not in log
    assert "bizType" not in log
