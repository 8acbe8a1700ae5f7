"""The supervisor by itself, with jobs of the test's own, in a process of its own."""

import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from issuer.doors.server import supervisor
from issuer.doors.server.supervisor import Supervisor
from tests import programs
from tests.doors.server.conftest import lives
from tests.waiting import until

pytestmark = pytest.mark.live

#: Runs a supervisor over jobs; `jobs` is to be defined, and what is printed is on stdout at once.
FRAME = """
import os, sys, time
from issuer.errors import ConfigurationError, IssuerError
from issuer.doors.server import logs, supervisor
from issuer.doors.server.supervisor import Supervisor, read_order

def until_the_end(orders, report):
    order = None
    while order != "end":
        order = read_order(orders) if orders.poll(1) else None
        report("ready" if order == "reload" else "alive")
        if order:
            print("told to", order, flush=True)

def steady(orders, report):
    report("ready")
    print("began", os.getpid(), flush=True)
    until_the_end(orders, report)
    print("ended", flush=True)

{jobs}

logs.begin("text", verbose=False)
gone = lambda process: print("gone", process, flush=True)
sys.exit(Supervisor(jobs, "serving", gone).run())
"""


def supervised(jobs: str, folder: Path) -> programs.Program:
    streams: dict[str, Any]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        streams = {"stdin": programs.DEVNULL, "stdout": out, "stderr": err}
        return programs.Program("-c", FRAME.format(jobs=jobs), **streams, cwd=folder)


def told(folder: Path, text: str, times: int = 1, stream: str = "out") -> str:
    until(lambda: (folder / stream).read_text().count(text) >= times, message=text)
    return (folder / stream).read_text()


def began(out: str) -> int:
    """Return the first process that has begun."""
    return int(out.partition("began ")[2].split()[0])


def test_serving_is_told_once_when_all_serve_and_a_signal_ends_each_job(tmp_path: Path) -> None:
    with supervised('jobs = [("one", steady), ("two", steady)]', tmp_path) as program:
        told(tmp_path, "serving", stream="err")
        first = began(told(tmp_path, "began", 2))
        os.kill(first, signal.SIGKILL)
        told(tmp_path, "began", 3)
        assert f"gone {first}\n" in told(tmp_path, "gone")
        program.terminate()
        assert program.wait(120) == 0
    out = (tmp_path / "out").read_text()
    assert (out.count("ended"), out.count("gone")) == (2, 3)
    assert (tmp_path / "err").read_text().count("serving") == 1


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ('IssuerError("no way")', "IssuerError: no way"),
        ('KeyError("a bug")', "IssuerError: bad failed with KeyError: the log has the details"),
    ],
)
def test_a_job_that_cannot_begin_ends_all_with_its_error(tmp_path: Path, raised: str, said: str) -> None:
    jobs = f"""
def bad(orders, report):
    raise {raised}
jobs = [("good", steady), ("bad", bad)]
"""
    with supervised(jobs, tmp_path) as program:
        assert program.wait(120) == 1
    assert said in (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text().count("began") == (tmp_path / "out").read_text().count("ended")


def test_serving_is_not_told_once_a_stop_has_begun(tmp_path: Path) -> None:
    jobs = """
def late(orders, report):
    until_the_end(orders, report)
    report("ready")

def ready(orders, report):
    report("ready")
    raise ConfigurationError("no way")

jobs = [("ready", ready), ("late", late)]"""
    with supervised(jobs, tmp_path) as program:
        assert program.wait(120) == 1
    err = (tmp_path / "err").read_text()
    assert "no way" in err
    assert "serving" not in err


def test_a_job_that_fails_later_is_begun_again_and_what_it_says_then_is_logged(tmp_path: Path) -> None:
    jobs = """
def failing(orders, report):
    path = "begun"
    begun = os.path.exists(path)
    open(path, "w").close()
    if begun:
        raise IssuerError("still no way")
    report("ready")
    raise IssuerError("no way any more")
jobs = [("it", failing)]
"""
    with supervised(jobs, tmp_path) as program:
        err = told(tmp_path, "still no way", 2, stream="err")
        assert "it: no way any more" in err
        assert program.poll() is None
        program.terminate()
        assert program.wait(120) == 0
    assert "with code 1: starting a new one in 0.1 s" in (tmp_path / "err").read_text()


def test_the_pause_grows_with_each_death_up_to_its_longest(tmp_path: Path) -> None:
    jobs = """
supervisor.FIRST_PAUSE, supervisor.LONGEST_PAUSE = 0.01, 0.05
def dies(orders, report):
    os._exit(3)
jobs = [("it", dies)]
"""
    with supervised(jobs, tmp_path) as program:
        err = told(tmp_path, "starting a new one in 0.05 s", 2, stream="err")
        program.terminate()
        assert program.wait(120) == 0
    assert re.findall(r"new one in (\S+) s", err)[:5] == ["0.01", "0.02", "0.04", "0.05", "0.05"]


def test_settings_that_are_found_wrong_once_it_serves_end_it(tmp_path: Path) -> None:
    jobs = """
def wrong(orders, report):
    report("ready")
    report(ConfigurationError("the store has no such thing"))
    until_the_end(orders, report)
jobs = [("it", wrong)]
"""
    with supervised(jobs, tmp_path) as program:
        assert program.wait(120) == 1
    assert "ConfigurationError: the store has no such thing" in (tmp_path / "err").read_text()


def test_a_job_that_does_not_end_is_killed_and_the_exit_code_says_so(tmp_path: Path) -> None:
    jobs = """
supervisor.STOPPING = 0.2
def deaf(orders, report):
    report("ready")
    print("began", os.getpid(), flush=True)
    while True:
        time.sleep(60)
jobs = [("deaf", deaf)]
"""
    with supervised(jobs, tmp_path) as program:
        told(tmp_path, "serving", stream="err")
        pid = began(told(tmp_path, "began"))
        program.terminate()
        assert program.wait(120) == 1
    assert "killing deaf: it did not end within 0.2 s" in (tmp_path / "err").read_text()
    assert not lives(pid)


def test_a_process_that_gives_no_sign_of_life_is_killed_and_begun_again(tmp_path: Path) -> None:
    jobs = """
supervisor.SILENT_LOOKS, supervisor.ALIVE_EVERY, supervisor.STOPPING = 3, 0.1, 0.2
def hangs(orders, report):
    report("ready")
    print("began", os.getpid(), flush=True)
    time.sleep(3600)
jobs = [("it", hangs)]
"""
    with supervised(jobs, tmp_path) as program:
        pid = began(told(tmp_path, "began", 2))
        assert f"gone {pid}\n" in told(tmp_path, "gone")
        err = told(tmp_path, "starting a new one", stream="err")
        assert f"it (process {pid}) has not responded for 0.3 s: killing it" in err
        assert f"it (process {pid}) ended by SIGKILL: starting a new one in 0.1 s" in err
        program.terminate()  # not killed: a job that hangs would go on
        assert program.wait(120) == 1


def test_looks_are_counted_so_that_a_machine_that_stood_still_has_no_hung_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed: list[str] = []
    process: Any = SimpleNamespace(pid=1, kill=lambda: killed.append("it"))
    watched = Supervisor([("it", lambda _orders, _report: None)], "serving", lambda _process: None)
    watched._children[0].process = process
    now = 0.0
    monkeypatch.setattr(supervisor, "monotonic", lambda: now)
    for _ in range(supervisor.SILENT_LOOKS - 1):
        now += 3600.0
        watched._look()
        watched._look()  # too early to count
    assert not killed
    now += supervisor.ALIVE_EVERY
    watched._look()
    assert killed == ["it"]


def test_a_process_that_begins_while_the_server_stops_is_told_so(tmp_path: Path) -> None:
    jobs = """
from functools import partial
Supervisor = partial(Supervisor, drain_delay=3600)
def tells(orders, report):
    report("ready")
    print("began", os.getpid(), flush=True)
    while orders.poll(None) and read_order(orders) == "drain":
        print("told of the stop", flush=True)
jobs = [("it", tells)]
"""
    with supervised(jobs, tmp_path) as program:
        pid = began(told(tmp_path, "began"))
        program.terminate()
        told(tmp_path, "told of the stop")
        os.kill(pid, signal.SIGKILL)
        told(tmp_path, "told of the stop", 2)
        program.kill()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_signals_that_mean_nothing_end_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with supervised('jobs = [("it", steady)]', tmp_path) as program:
        pid = began(told(tmp_path, "began"))
        for each in (pid, program.pid):
            os.kill(each, number)
        told(tmp_path, f"received {number.name}, which has no effect on this server", stream="err")
        program.terminate()
        assert program.wait(120) == 0
    assert (tmp_path / "out").read_text().count("began") == 1


def test_a_signal_to_one_process_leaves_its_end_to_the_supervisor(tmp_path: Path) -> None:
    with supervised('jobs = [("it", steady)]', tmp_path) as program:
        pid = began(told(tmp_path, "began"))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            os.kill(pid, number)
        program.send_signal(signal.SIGQUIT)
        assert program.wait(120) == 0
    assert "received SIGQUIT: stopping" in (tmp_path / "err").read_text()
    out = (tmp_path / "out").read_text()
    assert (out.count("began"), out.count("ended")) == (1, 1)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_hangup_reloads_also_under_nohup_and_while_it_stops_it_changes_nothing(tmp_path: Path, ignored: bool) -> None:
    jobs = f"""
import signal
from functools import partial
Supervisor = partial(Supervisor, drain_delay=3600)
if {ignored}:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
jobs = [("one", steady), ("two", steady)]
"""
    with supervised(jobs, tmp_path) as program:
        told(tmp_path, "serving", stream="err")
        for times in (2, 4):
            program.send_signal(signal.SIGHUP)
            told(tmp_path, "told to reload", times)
        program.terminate()
        told(tmp_path, "told to drain", 2)
        program.send_signal(signal.SIGHUP)
        told(tmp_path, "received SIGHUP, which has no effect", stream="err")
        assert program.poll() is None
        program.terminate()
        assert program.wait(120) == 128 + signal.SIGTERM
    assert (tmp_path / "out").read_text().count("told to reload") == 4


def test_an_interrupt_that_is_ignored_stays_so(tmp_path: Path) -> None:
    jobs = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
jobs = [("it", steady)]
"""
    with supervised(jobs, tmp_path) as program:
        told(tmp_path, "serving", stream="err")
        program.send_signal(signal.SIGINT)
        program.send_signal(signal.SIGTERM)
        assert program.wait(120) == 0
    assert "received SIGTERM: stopping" in (tmp_path / "err").read_text()
