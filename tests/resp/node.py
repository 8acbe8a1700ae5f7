"""Node's Redis clients from the npm registry, installed once into a folder that all runs of the tests share."""

import fcntl
import json
import subprocess
from pathlib import Path

from tests.servers.absent import absent, needed

CLIENTS = {"ioredis": "5.11.1", "redis": "5.12.1"}

#: Ignored by git. Named after the versions, so that others have a folder of their own.
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "-".join(["resp", *CLIENTS.values()])

_INSTALL = 300.0


def run(program: str, *arguments: str, timeout: float = 120.0) -> str:
    """Run a program of Node's with the clients at hand; return what it has printed."""
    node = needed("node")
    done = subprocess.run(
        [node, "--input-type=module", "-", *arguments],
        input=program,
        cwd=_installed(),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def _installed() -> Path:
    npm = needed("npm")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of the tests may come here at once
        if not (FOLDER / "ready").exists():
            (FOLDER / "package.json").write_text(json.dumps({"private": True, "dependencies": CLIENTS}))
            command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
            done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=_INSTALL)
            if done.returncode:
                absent(f"the npm registry ({done.stderr.strip()[-500:]})")
            (FOLDER / "ready").touch()
    return FOLDER
