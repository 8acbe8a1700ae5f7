"""make mutate: take each guard out of a copy of the checkout, and see its tests find the harm.

python -m tests.proofs.mutate                   all of mutations.toml, two at a time
python -m tests.proofs.mutate fence load-born   these
python -m tests.proofs.mutate --find tests/lua  for those that name no tests: which test of these folders finds the harm
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import click

from tests.proofs.mutate.mutations import REPOSITORY, Mutation, mutations

_FOUND, _PASSED = 1, 0
#: A test whose fixture finds the harm is an error.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


def copied(to: Path) -> Path:
    """Copy what git knows of the checkout, and what it would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=REPOSITORY, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, to / name, follow_symlinks=False)
    return to


def tested(root: Path, tests: Sequence[str], *options: str) -> tuple[int, list[str], str]:
    """Run tests in a copy; return pytest's exit code, the tests that failed, and its output."""
    path = os.pathsep.join(map(str, (root, root / "persistence")))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.proofs.mutate.plugin"]
    done = subprocess.run(
        [*command, "-m", "not soak", "--tb=short", *options, *tests],
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, _FAILED.findall(done.stdout), done.stdout + done.stderr


class Workshop:
    """Copies of the checkout, each for one mutation at a time."""

    def __init__(self, folder: Path, copies: int) -> None:
        self._free: Queue[Path] = Queue()
        for number in range(copies):
            self._free.put(copied(folder / str(number)))

    def judged(self, mutation: Mutation, tests: Sequence[str], *options: str) -> tuple[str, str, float]:
        """Return how the tests judge the mutation, by what, and in how many seconds."""
        began, root = time.monotonic(), self._free.get()
        try:
            mutation.applied(root)
            code, failed, printed = tested(root, tests, *options)
        finally:
            mutation.undone(root)
            self._free.put(root)
        took = time.monotonic() - began
        if code == _FOUND and failed:
            return "found", failed[0], took
        return ("SURVIVED", "", took) if code == _PASSED else ("ERROR", printed[-400:], took)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--find", multiple=True, help="Look in these folders for a test that finds the harm.")
@click.option("--jobs", default=2, show_default=True, help="How many at a time.")
def main(names: tuple[str, ...], find: tuple[str, ...], jobs: int) -> None:
    """Take each guard out, and see the harm found."""
    chosen = [each for each in mutations() if not names or each.name in names]
    if find:
        chosen = [each for each in chosen if names or not each.tests]
    elif problems := [problem for each in chosen if (problem := each.problem())]:
        sys.exit("\n".join(problems))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="issuer-mutate-") as folder, ThreadPoolExecutor(jobs) as pool:
        workshop = Workshop(Path(folder), jobs)
        if not find:
            every = sorted({test for each in chosen for test in each.tests})
            code, failed, printed = tested(copied(Path(folder) / "intact"), every)
            if code != _PASSED:
                sys.exit(f"with every guard in its place: {failed or printed[-2000:]}")
            click.echo(f"with every guard in its place {len(every)} tests pass, {time.monotonic() - began:.0f} s\n")
        judged = [
            (each, pool.submit(workshop.judged, each, find or each.tests, *(("--maxfail=1",) if find else ("-x",))))
            for each in chosen
        ]
        missed = 0
        for mutation, future in judged:
            verdict, by, took = future.result()
            missed += verdict != "found"
            click.echo(f"{verdict:8}  {mutation.name:22} {took:5.1f} s  {mutation.harm}")
            click.echo(f"{'':10}{by}")
    click.echo(f"\n{len(judged) - missed} of {len(judged)} found, {time.monotonic() - began:.0f} s")
    sys.exit(1 if missed else 0)


main()
