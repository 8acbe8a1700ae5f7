"""Eight processes on a real Redis and a real MongoDB wire server."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

import issuer
from tests.audit import Draw, order_violations, repeats
from tests.servers.redis import RedisServer

PROCESSES = 8
EACH = 20_000


@pytest.mark.covers("3.1", "1.1", "1.3", "3.2", "0.10", "4.1", "4.3")
@pytest.mark.parametrize("threads", [1, 4])
def test_eight_processes_repeat_nothing_and_keep_the_order_of_their_calls(
    redis_server: RedisServer, redis_url: str, mongo_url: str, tmp_path: Path, threads: int
) -> None:
    assert redis_server.running
    store = f"{mongo_url}/soak{threads}"
    with issuer.connect(redis=redis_url, store=store, timeout=30) as ids:
        ids.create("a", step=5000)
        files = [tmp_path / f"{number}" for number in range(PROCESSES)]
        drawers = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.drawer",
                    redis_url,
                    store,
                    "a",
                    str(EACH),
                    str(threads),
                    str(file),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for file in files
        ]
        for drawer in drawers:
            assert drawer.stdout is not None
            assert drawer.stdout.readline() == "ready\n"
        for drawer in drawers:
            assert drawer.stdin is not None
            drawer.stdin.write("go\n")
            drawer.stdin.flush()
        for drawer in drawers:
            drawer.communicate()
            assert drawer.returncode == 0
        draws = [Draw(*values) for file in files for values in struct.iter_unpack("qqq", file.read_bytes())]
        assert len(draws) == PROCESSES * EACH
        assert repeats(draw.number for draw in draws) == []
        assert max(draw.number for draw in draws) <= ids.inspect("a").store.max
        assert order_violations(draws) == []
