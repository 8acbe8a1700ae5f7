"""What each page of docs/guide/languages needs on the machine."""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.doors.languages import node
from tests.servers.absent import absent


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
    (folder / "node_modules").symlink_to(node.modules())


#: By page. Without modules, Go finds the packages that Debian brings.
TOOLCHAINS = {
    "c": Toolchain(
        ("cc", "-fsyntax-only", "-include", "hiredis/hiredis.h", "-x", "c", "/dev/null"), "gcc libc6-dev libhiredis-dev"
    ),
    "go": Toolchain(
        ("go", "list", "github.com/gomodule/redigo/redis"),
        "golang-go golang-github-gomodule-redigo-dev",
        env={"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(node.CACHE / "go")},
    ),
    "java": Toolchain(("javac", "--version"), "default-jdk-headless"),
    "node": Toolchain(("node", "--version"), "nodejs npm", prepare=_node),
    "perl": Toolchain(("perl", "-MRedis", "-MJSON::PP", "-e", "1"), "libredis-perl"),
    "php": Toolchain(("php", "-r", "new Redis; curl_init();"), "php-cli php-redis php-curl"),
    "ruby": Toolchain(("ruby", "-e", 'require "redis"'), "ruby ruby-redis"),
}
