"""Finds and assembles the Lua scripts, and computes their SHA-1."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from issuer.errors import ConfigurationError

NAMES = (
    "next",
    "lease",
    "giveback",
    "open",
    "load",
    "floor",
    "once",
    "machine_claim",
    "machine_renew",
    "machine_release",
)

_INCLUDE = re.compile(r"^--@include (\w+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """An assembled script: its name, its text as sent to Redis, and its SHA-1 for EVALSHA."""

    name: str
    text: str
    sha: str


def folder() -> Path:
    """Return the directory of the scripts: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_lua", package.parent / "lua"):
        if (place / "next.lua").is_file():
            return place
    raise ConfigurationError(
        "the Lua scripts are missing: install segment-issuer from its wheel, or run a full checkout"
    )


@cache
def script(name: str) -> Script:
    """Return a script with its includes. Raises ConfigurationError if there is none of this name."""
    if name not in NAMES:
        raise ConfigurationError(f"no script {name!r}; there are {', '.join(NAMES)}")
    place = folder()

    def fragment(match: re.Match[str]) -> str:
        return (place / "include" / f"{match[1]}.lua").read_text(encoding="utf-8").rstrip()

    text = _INCLUDE.sub(fragment, (place / f"{name}.lua").read_text(encoding="utf-8"))
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
