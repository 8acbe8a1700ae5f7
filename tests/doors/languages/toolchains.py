"""What each page of docs/guide/languages needs on the machine; Node's clients of Redis are installed once."""

import fcntl
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.servers.absent import absent, needed

_PACKAGES = Path(__file__).parent / "package.json"
#: Ignored by git. Not `.cache`, which `make docs` empties.
CACHE = Path(__file__).resolve().parents[3] / ".languages"
#: Named after the versions, so that others have a folder of their own.
_FOLDER = CACHE / f"node-{zlib.crc32(_PACKAGES.read_bytes()):08x}"
_INSTALL = 300.0


def run_node(program: str, *arguments: str, timeout: float = 120.0) -> str:
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


def _nothing(_: Path) -> None:
    pass


@dataclass(frozen=True)
class Toolchain:
    """A command that succeeds where everything is installed, and the packages of Debian and Ubuntu that bring it."""

    check: tuple[str, ...]
    packages: str
    #: Variables of its own.
    env: Mapping[str, str] = field(default_factory=dict)
    #: Puts its libraries into the folder of the programs.
    prepare: Callable[[Path], None] = _nothing

    def need(self) -> None:
        """Without it the test is skipped, and fails where CI is set."""
        program, env = shutil.which(self.check[0]), {**os.environ, **self.env}
        if program is None or subprocess.run(self.check, env=env, capture_output=True, check=False).returncode:
            absent(" ".join(self.check), self.packages)


def _node(folder: Path) -> None:
    (folder / "node_modules").symlink_to(modules())


#: By page. Without modules, Go finds the packages that Debian brings.
TOOLCHAINS = {
    "c": Toolchain(
        ("cc", "-fsyntax-only", "-include", "hiredis/hiredis.h", "-x", "c", "/dev/null"), "gcc libc6-dev libhiredis-dev"
    ),
    "go": Toolchain(
        ("go", "list", "github.com/gomodule/redigo/redis"),
        "golang-go golang-github-gomodule-redigo-dev",
        env={"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(CACHE / "go")},
    ),
    "java": Toolchain(("javac", "--version"), "default-jdk-headless"),
    "node": Toolchain(("node", "--version"), "nodejs npm", prepare=_node),
    "perl": Toolchain(("perl", "-MRedis", "-MJSON::PP", "-e", "1"), "libredis-perl"),
    "php": Toolchain(("php", "-r", "new Redis; curl_init();"), "php-cli php-redis php-curl"),
    "ruby": Toolchain(("ruby", "-e", 'require "redis"'), "ruby ruby-redis"),
}
