"""A process that is forked in C, of which Python hears nothing: no number comes twice, and no reply is another's."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import issuer
from tests.audit import repeats
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.usefixtures("patient")

APP = Path(__file__).with_name("c_fork_app.py")
KINDS: dict[str, dict[str, Any]] = {
    "strict": {"order": "strict"},
    "leased": {"order": "trend"},
    "direct": {"order": "trend"},
    "stream": {"order": "trend"},
    "snowflake": {"strategy": "snowflake"},
    "tasks": {"order": "trend"},
}


@pytest.mark.parametrize(
    ("kind", "children"),
    [*((kind, 4) for kind in KINDS), ("leased", 0), ("tasks", 0)],
    ids=[*KINDS, "leased, and its child only ends", "tasks, and its child only ends"],
)
def test_no_number_comes_twice_after_a_fork_in_c(
    kind: str, children: int, redis_server: RedisServer, redis_url: str, tmp_path: Path
) -> None:
    assert redis_server.running
    redis, store = "none" if kind == "direct" else redis_url, f"sqlite:///{tmp_path / 'ids.db'}"
    with issuer.connect(redis=redis, store=store, scheduler=None) as ids:
        ids.create("t", **KINDS[kind])
    line = [sys.executable, str(APP), redis, store, kind, str(children), "700"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [len(each) for each in told] == [10 + (children + 1) * 700, *[700] * children, 0, 20]
    assert repeats(chain.from_iterable(told)) == []
    assert all(each == sorted(each) for each in told)
