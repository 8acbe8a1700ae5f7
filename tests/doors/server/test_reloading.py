"""SIGHUP, from an operator or from a terminal that closes: the tokens are read again, and the server goes on."""

import os
import pty
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.doors.http.doors import tokens
from tests.doors.server.conftest import PATIENT, WITH_CONSTANTS, Serve, Served
from tests.servers.absent import absent
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.live

#: Only a signal makes the workers read the file again.
UNWATCHED = (*PATIENT, "issuer.doors.server.worker.LOOK_EVERY=3600")


def answers(server: Served, token: str) -> set[int]:
    """Return what clients with the token get, over so many connections that each worker has some."""
    bearer = {"Authorization": f"Bearer {token}"}
    with ExitStack() as ends:
        clients = [ends.enter_context(server.fresh()) for _ in range(6)]
        return {each.post("/v1/tags/orders/next", headers=bearer).status_code for each in clients}


def test_a_hangup_applies_the_tokens_at_once_and_logs_each_time_what_is_wrong_with_them(
    serve: Serve, home: Path
) -> None:
    file, token = home / "tokens.toml", tokens(home, a=(["issue"], ["orders"]))[1]["a"]
    line = file.read_text()
    file.write_text("")
    server = serve("--tokens", "tokens.toml", "--workers", "2", constants=UNWATCHED)
    assert answers(server, token) == {401}
    file.write_text(line)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: answers(server, token) == {200}, message="each worker has read it again")
    file.write_text("a = {")
    for times in (1, 2):
        server.process.send_signal(signal.SIGHUP)
        server.told("the tokens that were read before stay valid", times)
    assert answers(server, token) == {200}
    assert len(server.children()) == 2
    assert server.stop() == 0


def test_a_terminal_that_closes_stops_nothing(home: Path) -> None:
    setsid = shutil.which("setsid") or absent("setsid", "util-linux")
    file, token = home / "tokens.toml", tokens(home, a=(["issue"], ["orders"]))[1]["a"]
    line, url = file.read_text(), f"http://127.0.0.1:{free_port()}"
    file.write_text("")
    terminal, inner = pty.openpty()
    code = WITH_CONSTANTS.format(constants=UNWATCHED, files=0)
    command = [setsid, "--ctty", sys.executable, "-c", code, "serve", f"--http={url[7:]}", "--tokens=tokens.toml"]
    started = subprocess.Popen(
        command, stdin=inner, stdout=inner, stderr=inner, cwd=home, env={**os.environ, "TMPDIR": str(home)}
    )
    os.close(inner)
    try:
        shown = b""
        while b"serving " not in shown:
            shown += os.read(terminal, 4096)
        file.write_text(line)
        os.close(terminal)  # the system sends SIGHUP, and nobody reads the log any more
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120) as client:
            until(lambda: client.post("/v1/tags/orders/next").status_code == 200, message="it has read them again")
        started.terminate()
        assert started.wait(120) == 0
    finally:
        started.kill()
        started.wait()
