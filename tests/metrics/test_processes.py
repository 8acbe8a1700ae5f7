"""Several processes: one answers for all, what a dead one counted stays, and a forked child counts for itself."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest

import issuer
from issuer.metrics import book
from tests.metrics.shown import Shown
from tests.servers.ports import free_port
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.usefixtures("patient"),
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


class Process:
    """A process of counted.py."""

    def __init__(self, environ: dict[str, str], *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.metrics.counted", *arguments]
        self._run = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run.kill()
        self._run.communicate()

    @property
    def pid(self) -> int:
        return self._run.pid

    def do(self, *words: object) -> Any:
        assert self._run.stdin is not None
        assert self._run.stdout is not None
        self._run.stdin.write(" ".join(map(str, words)) + "\n")
        self._run.stdin.flush()
        line = self._run.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)

    @property
    def shown(self) -> Shown:
        return Shown(self.do("show"))

    def end(self, number: signal.Signals) -> None:
        self._run.send_signal(number)
        self._run.wait(120)

    def leave(self) -> None:
        """End in order."""
        assert self.do("close") == "closed"
        self._run.communicate("", timeout=120)


Start = Callable[..., Process]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "metrics"
    made.mkdir()
    return made


@pytest.fixture
def start(redis_url: str, tmp_path: Path, folder: Path) -> Iterator[Start]:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=50_000, order="trend")
    with ExitStack() as ends:

        def process(*, together: bool = True, lease: int = 0) -> Process:
            environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
            if not together:
                del environ["PROMETHEUS_MULTIPROC_DIR"]
            return ends.enter_context(Process(environ, redis_url, store, str(lease)))

        yield process


def test_any_of_several_processes_answers_for_all_of_them(start: Start) -> None:
    workers = [start(lease=1000) for _ in range(3)]
    for count, worker in enumerate(workers, 1):
        worker.do("draw", 10 * count)
    for worker in workers:
        # A gauge is published a moment after the counters.
        until(lambda worker=worker: worker.shown.value("held_numbers", tag="a") == 3000 - 60)  # type: ignore[misc]  # mypy's lambda
        found = worker.shown
        assert found.value("issued_total", tag="a") == 60
        assert found.value("leases_drawn_total", tag="a") == 3
        assert found.value("tags") == 1
        assert found.total("build_info") == 1
        assert found.value("limit_ratio", tag="a") is not None
        assert found.value("reservation_seconds_count", reason="load", result="done") == 1


def test_what_a_process_counted_stays_when_it_is_killed_and_its_gauges_go(start: Start) -> None:
    killed, other = start(lease=1000), start(lease=1000)
    killed.do("draw", 30)
    other.do("draw", 4)
    until(lambda: other.shown.value("issued_total", tag="a") == 34)
    until(lambda: other.shown.value("held_numbers", tag="a") == 1966)
    killed.end(signal.SIGKILL)
    found = other.shown
    assert found.value("issued_total", tag="a") == 34
    assert found.value("leases_drawn_total", tag="a") == 2
    assert found.value("held_numbers", tag="a") == 996
    third = start(lease=1000)
    third.do("draw", 1)
    assert third.shown.value("issued_total", tag="a") == 35


def test_what_a_process_counted_last_is_there_when_it_has_left_in_order(start: Start) -> None:
    left, other = start(lease=1000), start()
    left.do("draw", 30)
    left.do("draw", 50)
    left.leave()
    found = other.shown
    assert found.value("issued_total", tag="a") == 80
    assert not found.value("held_numbers", tag="a")


@pytest.mark.parametrize("together", [False, True], ids=["by themselves", "together"])
def test_a_forked_child_counts_from_nothing(start: Start, together: bool) -> None:
    parent = start(together=together, lease=1000)
    parent.do("draw", 30)
    before = parent.shown
    assert before.value("issued_total", tag="a") == 30
    child = Shown(parent.do("fork", 12))
    assert child.value("issued_total", tag="a") == (42 if together else 12)
    assert child.value("leases_drawn_total", tag="a") == (2 if together else 1)
    after = parent.shown
    assert after.value("issued_total", tag="a") == (42 if together else 30)
    parent.do("draw", 5)
    assert parent.shown.value("issued_total", tag="a") == (47 if together else 35)


@pytest.mark.parametrize("together", [False, True], ids=["by themselves", "together"])
def test_what_the_parent_has_not_counted_yet_is_no_number_of_a_forked_child(start: Start, together: bool) -> None:
    parent = start(together=together, lease=0)
    parent.do("draw", 30)
    assert parent.shown.value("issued_total", tag="a") == 30
    parent.do("draw", 5)
    child = Shown(parent.do("fork", 12))  # nobody has asked for the parent's metrics since it drew
    if not together:
        assert child.value("issued_total", tag="a") == 12
    assert parent.shown.value("issued_total", tag="a") == (47 if together else 35)


def test_a_directory_that_is_missing_is_refused(folder: Path, redis_url: str) -> None:
    environ = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder / "not-there")}
    program = f"import issuer; issuer.connect(redis={redis_url!r}, store='memory://', metrics=True)"
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ConfigurationError: PROMETHEUS_MULTIPROC_DIR is not a directory" in done.stderr


@pytest.mark.parametrize("together", [False, True], ids=["by themselves", "together"])
def test_a_fork_leaves_no_lock_held_by_a_thread_that_was_counting(start: Start, together: bool) -> None:
    assert start(together=together, lease=1000).do("storm", 5) == [0] * 5


def test_of_two_that_are_asked_as_a_process_has_ended_one_takes_its_files_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / f"gauge_livesum_{ended.pid}.db").touch()

    def gone(*_: object) -> None:
        raise FileNotFoundError("another one has removed it")

    monkeypatch.setattr(book, "mark_process_dead", gone)
    book._forget_the_dead(str(tmp_path))


@pytest.mark.parametrize("cut", ["empty", "header", "middle", "end", "zeros", "other"])
def test_a_file_that_a_killed_process_left_empty_or_cut_off_is_left_out_and_named(
    start: Start, folder: Path, cut: str, capfd: pytest.CaptureFixture[str]
) -> None:
    killed, other = start(lease=1000), start()
    killed.do("draw", 30)
    other.do("draw", 4)
    until(lambda: other.shown.value("issued_total", tag="a") == 34)
    (file,) = folder.glob(f"counter_{killed.pid}.db")
    killed.end(signal.SIGKILL)
    whole = file.read_bytes()
    used = int.from_bytes(whole[:4], sys.byteorder)
    contents = {
        "empty": b"",
        "header": whole[:3],
        "middle": whole[: used // 2],
        "end": whole[: used - 4],
        "zeros": whole[: used // 2] + bytes(used // 2),  # of a disk that had no room, or a machine that went down
        "other": whole[:4] + bytes(range(256)) * (used // 256 + 1),
    }
    file.write_bytes(contents[cut])
    for _ in range(2):
        assert other.shown.value("issued_total", tag="a") == 4
    assert capfd.readouterr().err.count(f"{file} cannot be read") == 1


def test_preloaded_workers_of_gunicorn_speak_for_each_other(redis_url: str, tmp_path: Path, folder: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=5000)
    at = f"127.0.0.1:{free_port()}"
    settings = {"MEASURED_REDIS": redis_url, "MEASURED_STORE": store, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    options = f"--preload --workers 3 --bind {at} --log-level warning --timeout 120"
    service = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *options.split(), "tests.metrics.measured_app:app"],
        cwd=ROOT,
        env={**os.environ, **settings},
    )

    def asked(path: str) -> str:
        with urllib.request.urlopen(f"http://{at}/{path}", timeout=60) as answer:
            text: str = answer.read().decode()
            return text

    try:
        until(lambda: asked("metrics"), 240, ignoring=(OSError,))
        answers: list[str] = []

        def several() -> bool:
            """Whether several workers have answered: the first to be there may have answered all so far."""
            answers.extend(pool.map(asked, [""] * 20))
            return len({answer.split()[0] for answer in answers}) > 1

        with ThreadPoolExecutor(8) as pool:
            until(several, 240)
        pids, drawn = {answer.split()[0] for answer in answers}, 7 + 2 * len(answers)
        until(lambda: Shown(asked("metrics")).value("issued_total", tag="a") == drawn)
        os.kill(int(pids.pop()), signal.SIGKILL)
        until(lambda: asked(""), ignoring=(OSError,))
        until(lambda: (Shown(asked("metrics")).value("issued_total", tag="a") or 0) >= drawn + 2, ignoring=(OSError,))
    finally:
        service.terminate()
        service.wait(120)
