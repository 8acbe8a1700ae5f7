"""What `deploy/` holds is valid, names settings that are there, and keeps what the pages promise of it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from issuer.settings import DEFINITIONS
from tests.servers.absent import absent

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VARIABLES = {"ISSUER_CONFIG", *(each.variable for each in DEFINITIONS.values())}

#: The highest exposure that `systemd-analyze security` may find, of 10. It is given in tenths.
EXPOSED_MOST = "20"


@pytest.mark.parametrize("path", [each for each in DEPLOY.rglob("*") if each.is_file()], ids=lambda path: path.name)
def test_each_variable_that_is_named_is_of_a_setting(path: Path) -> None:
    assert set(re.findall(r"\bISSUER_[A-Z_]+", path.read_text("utf-8"))) <= VARIABLES


# ------------------------------------------------------------------ systemd


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("systemd-analyze") or absent("systemd-analyze", "systemd")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.live
@pytest.mark.covers("U.24")
def test_systemd_takes_the_units_and_finds_the_service_hardened(tmp_path: Path) -> None:
    for each in (DEPLOY / "systemd").iterdir():
        # The program is not installed here.
        text = each.read_text("utf-8").replace("/opt/issuer/bin/issuer", sys.executable)
        (tmp_path / each.name).write_text(text, "utf-8")
    units = sorted(map(str, tmp_path.iterdir()))
    assert len(units) == 3
    verified = analyze("verify", *units)
    assert (verified.returncode, verified.stdout) == (0, "")
    ours = [line for line in verified.stderr.splitlines() if str(tmp_path) in line or line.startswith("issuer")]
    assert ours == []
    secured = analyze("security", "--offline=yes", f"--threshold={EXPOSED_MOST}", str(tmp_path / "issuer.service"))
    assert secured.returncode == 0, secured.stdout


def test_the_socket_units_name_the_protocols_and_the_service() -> None:
    for name in ("http", "resp"):
        unit = (DEPLOY / "systemd" / f"issuer-{name}.socket").read_text("utf-8")
        assert f"\nFileDescriptorName={name}\nService=issuer.service\n" in unit
