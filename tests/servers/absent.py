"""What to do about a server or program that this machine lacks."""

import os
import shutil
from typing import NoReturn

#: Programs that no wheel brings, and the package of Debian and Ubuntu that does.
PACKAGES = {
    "curl": "curl",
    "haproxy": "haproxy",
    "nginx": "nginx",
    "node": "nodejs",
    "npm": "npm",
    "openssl": "openssl",
    "redis-benchmark": "redis-tools",
    "redis-cli": "redis-tools",
}


def absent(service: str, package: str | None = None) -> NoReturn:
    """Skip on a laptop, fail in CI: there, silence would pass for proof. `package`: the one that brings it."""
    import pytest  # here, as the environment of `make bench` has none

    lacking = f"{service} is missing" + (f" (Debian, Ubuntu: apt-get install {package})" if package else "")
    if os.environ.get("CI"):
        pytest.fail(f"{lacking}, and CI is set: install it", pytrace=False)
    pytest.skip(lacking)


def needed(name: str) -> str:
    """Return the path of one of PACKAGES; without it the test is skipped, and fails where CI is set."""
    return shutil.which(name) or absent(name, PACKAGES[name])
