"""A program that is forked ends as one that has an interpreter of its own."""

import signal
from pathlib import Path

import pytest

from tests.programs import PIPE, Program, run

pytestmark = pytest.mark.live

ENDS = """
import atexit, os, sys
atexit.register(print, "atexit")
print(sys.argv[1:], os.environ.get("COLOUR"), sys.stdin.read())
sys.exit(int(sys.argv[1])) if sys.argv[1].isdigit() else exec(sys.argv[1])
"""


@pytest.fixture
def ends(tmp_path: Path) -> str:
    path = tmp_path / "ends.py"
    path.write_text(ENDS)
    return str(path)


def test_it_has_the_arguments_the_environment_and_the_streams_that_it_was_given(ends: str) -> None:
    done = run(ends, "3", input="hello", env={"COLOUR": "red"})
    assert (done.returncode, done.stdout, done.stderr) == (3, "['3'] red hello\natexit\n", "")


@pytest.mark.parametrize(
    ("code", "returncode", "error"),
    [
        ("raise ValueError(7)", 1, "ValueError: 7"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
    ],
)
def test_it_ends_as_an_interpreter_does(ends: str, code: str, returncode: int, error: str) -> None:
    done = run(ends, code, input="")
    assert done.returncode == returncode
    assert done.stderr.strip().splitlines()[-1:] == ([error] if error else [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_it(tmp_path: Path, number: int) -> None:
    (tmp_path / "waits.py").write_text("import signal\nprint('up', flush=True)\nsignal.pause()\n")
    with Program(str(tmp_path / "waits.py"), stdout=PIPE, stderr=PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "up\n"
        program.send_signal(number)
        assert program.wait(60) == -number
