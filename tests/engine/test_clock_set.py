"""The system's clock is set while a process runs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
import time_machine

import issuer
from tests.care.test_keeper import Drawer
from tests.colours import Connect
from tests.programs import REPOSITORY
from tests.servers.clocked import Clock
from tests.waiting import until

pytestmark = pytest.mark.live

HOUR, MONTH = 3600, 30 * 86_400


def peak(pid: int) -> int:
    """Return the most memory that the process has had, in kB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def test_a_keeper_goes_on_loading(redis_url: str, redis_client: redis.Redis, tmp_path: Path) -> None:
    clock, url, told = Clock(tmp_path / "clock"), f"sqlite:///{tmp_path}/issuer.db", tmp_path / "told"
    command = [sys.executable, "-m", "issuer", "--redis", redis_url, "--store", url, "keeper"]
    with issuer.connect(redis=redis_url, store=url, scheduler=None) as ids, told.open("w") as talk:
        ids.create("a", step=10)
        ids.next("a")
        keeper = subprocess.Popen(command, env={**os.environ, **clock.environment}, cwd=REPOSITORY, stderr=talk)
        try:
            until(lambda: "keeping all tags" in told.read_text())
            before, drawer = peak(keeper.pid), Drawer(redis_client, "a")
            for seconds in (-HOUR, MONTH):
                clock.set(seconds)
                drawer.draw(100)
            assert drawer.numbers == sorted(set(drawer.numbers))
            assert peak(keeper.pid) < before + 50_000
            keeper.send_signal(signal.SIGTERM)
            assert keeper.wait(60) == 0
        finally:
            keeper.kill()
            keeper.wait()


def test_a_process_whose_clock_is_100_days_ahead_leaves_the_ledger_alone(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/issuer.db"
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        ids.create("a", step=10, order="trend")
        ids.take("a", 640)
        before = {each.id for each in ids.engine.config.store.ledger("a", newest=1000, timeout=60)}
        with time_machine.travel(time.time() + 100 * 86_400), connect(redis="none", store=url) as late:
            late.take("a", 100)
            until(lambda: "100 days ahead of sqlite://" in caplog.text)
        assert before <= {each.id for each in ids.engine.config.store.ledger("a", newest=1000, timeout=60)}
        assert caplog.text.count("deletes no old ledger entries") == 1
