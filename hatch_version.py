"""The version of this tree: the release, and the commit that it was made of, as in 0.1.0+g1a2b3c4d5.

`.changed` follows if files differ from that commit. The commit that is tagged as the release (v0.1.0), and a tree
without a commit, have the release alone.
"""

import re
import subprocess
from pathlib import Path

RELEASE = "0.1.0"
HERE = Path(__file__).resolve().parent
#: In an archive that git has made, as the zip of a hosting service, the commit stands here.
ARCHIVED = "$Format:%H$"


def version() -> str:
    """Return the version."""
    if (HERE / "PKG-INFO").is_file():  # a source distribution
        found = re.search(r"^Version: (.*)$", (HERE / "PKG-INFO").read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else RELEASE
    commit = _commit() if ARCHIVED.startswith("$") else ARCHIVED[:9]
    return f"{RELEASE}+g{commit}" if commit else RELEASE


def _commit() -> str:
    if not (HERE / ".git").exists():  # perhaps beneath a repository of somebody else's
        return ""
    release = f"v{RELEASE}"
    # v0.1.0-3-g1a2b3c4d5 with the tag of the release three commits before, else 1a2b3c4d5; perhaps with .changed.
    form = ("--dirty=.changed", "--tags", f"--match={release}", "--always", "--long", "--abbrev=9")
    command = ["git", "describe", *form]
    try:
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)  # noqa: S603 - no word of it is anybody else's
    except OSError:
        return ""
    commits, _, commit = done.stdout.strip().removeprefix(f"{release}-").rpartition("-g")
    return "" if commits == "0" and not commit.endswith(".changed") else commit
