"""Prints the oldest version of each library that a pyproject.toml admits, as constraints for pip.

python lower_bounds.py pyproject.toml
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def lower_bounds(project: dict[str, Any]) -> Iterator[str]:
    """Yield `name==version` for the dependencies and the extras. The tools of the developers are no part of it."""
    extras = project.get("optional-dependencies", {}).values()
    for requirement in sorted({*project["dependencies"], *(each for extra in extras for each in extra)}):
        if requirement.startswith("segment-issuer["):  # an extra that has another extra
            continue
        found = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?\s*>=\s*([\w.]+)", requirement)
        if not found:
            raise ValueError(f"{requirement!r} has no lower bound: write it as name>=version")
        yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    print(*dict.fromkeys(lower_bounds(tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))["project"])), sep="\n")
