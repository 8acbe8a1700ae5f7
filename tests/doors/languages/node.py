"""Node's Redis clients from the npm registry, installed once into a folder that all runs of the tests share."""

import fcntl
import shutil
import subprocess
import zlib
from pathlib import Path

from tests.servers.absent import absent, needed

_PACKAGES = Path(__file__).parent / "package.json"
#: Ignored by git. Not `.cache`, which `make docs` empties.
CACHE = Path(__file__).resolve().parents[3] / ".languages"
#: Named after the versions, so that others have a folder of their own.
_FOLDER = CACHE / f"node-{zlib.crc32(_PACKAGES.read_bytes()):08x}"
_INSTALL = 300.0


def run(program: str, *arguments: str, timeout: float = 120.0) -> str:
    """Run a program of Node's with the clients at hand; return what it has printed."""
    node = needed("node")
    done = subprocess.run(
        [node, "--input-type=module", "-", *arguments],
        input=program,
        cwd=modules().parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def modules() -> Path:
    """Return the folder `node_modules` that has the clients."""
    npm = needed("npm")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of the tests may come here at once
        if not (_FOLDER / "ready").exists():
            shutil.copy(_PACKAGES, _FOLDER)
            command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
            done = subprocess.run(command, cwd=_FOLDER, capture_output=True, text=True, check=False, timeout=_INSTALL)
            if done.returncode:
                absent(f"the npm registry ({done.stderr.strip()[-500:]})")
            (_FOLDER / "ready").touch()
    return _FOLDER / "node_modules"
