"""What each page of docs/guide/languages needs on the machine."""

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.languages import node
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
        program = shutil.which(self.check[0])
        if program is None or subprocess.run(self.check, capture_output=True, check=False).returncode:
            absent(" ".join(self.check), self.packages)


def _node(folder: Path) -> None:
    (folder / "node_modules").symlink_to(node.modules())


TOOLCHAINS = {
    "node": Toolchain(("node", "--version"), "nodejs npm", prepare=_node),
}
