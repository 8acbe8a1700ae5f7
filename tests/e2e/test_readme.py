"""What the README shows is what happens: its console blocks and its Python are run, one after the other."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.redis import RedisServer

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for name, text in BLOCK.findall(README.read_text(encoding="utf-8")) if name == language]


def commands(block: str) -> list[tuple[str, str]]:
    """Split a console block into commands and what they print."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


def as_pattern(shown: str) -> str:
    """`...` stands for the rest of a line, alone on a line for any lines."""
    return "".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line).replace(r"\.\.\.", ".*") + r"\n"
        for line in shown.splitlines()
    )


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A new user's: nothing is set, and `issuer` is on PATH."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ISSUER_", "MONGO", "REDIS"))}
    home = {name: str(tmp_path) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    return {**ours, **home, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.live
def test_its_commands_print_what_it_shows(environment: dict[str, str], tmp_path: Path) -> None:
    """One after the other, with the Python between them that needs no server either."""
    ran = 0
    for language, block in BLOCK.findall(README.read_text(encoding="utf-8")):
        if language == "python" and "connect(" not in block:
            subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=environment, check=True, timeout=60)
            continue
        for command, shown in commands(block) if language == "console" else ():
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            printed = done.stdout + done.stderr
            assert re.fullmatch(as_pattern(shown), printed), f"$ {command}\n{printed}\ninstead of\n{shown}"
            ran += 1
    assert ran >= 8


def test_its_python_runs(
    environment: dict[str, str], tmp_path: Path, redis_server: RedisServer, redis_url: str, mongo_url: str
) -> None:
    ran = 0
    for number, block in enumerate(blocks("python")):
        code = block.replace("redis://localhost:6379/0", redis_url)
        code = code.replace("mongodb://localhost:27017/issuer", f"{mongo_url}/readme{number}")
        code = re.sub(
            r"^( *)(\S+\(.*\))  # (\d+|range\(.*?\))(.*)$", r"\1assert \2 == \3  #\4", code, flags=re.MULTILINE
        )
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, timeout=60)
        ran += code.count("assert ")
    assert ran >= 2
    assert redis_server.running
