"""What a run of `make soak` has done, as text, and how to run each failure again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Cells of what ran; with its figures it takes 100.
_WHAT = 55
#: What a shell leaves as it is.
_PLAIN = re.compile(r"[\w./:\[\]=,@%+-]+")


@dataclass
class Part:
    """What ran of one folder, or one command that is no test of pytest. `seconds`: of all its workers."""

    items: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> int:
        return self.items - self.failed - self.skipped


@dataclass
class Run:
    """One run. `failures`: the ids of tests; `commands`: the command lines, beside tests, that failed."""

    seed: int
    parts: dict[str, Part] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def ended(self, test: str, outcomes: set[str], seconds: float) -> None:
        """Count a test whose setup, call and teardown came to these outcomes."""
        part = self.parts.setdefault(test.partition("::")[0].rpartition("/")[0], Part())
        part.items += 1
        part.seconds += seconds
        if "failed" in outcomes:
            part.failed += 1
            self.failures.append(test)
        elif "skipped" in outcomes:
            part.skipped += 1

    def commanded(self, line: str, code: int, seconds: float) -> None:
        """Count a command."""
        self.parts[line] = Part(1, int(code != 0), 0, seconds)
        if code:
            self.commands.append(f"ISSUER_TEST_SEED={self.seed} .venv/bin/{line}")

    def lines(self, seconds: float) -> Iterator[str]:
        """Yield the report; `seconds`: how long all of it took."""
        total = Part()
        yield f"{'WHAT':{_WHAT}}    ITEMS   PASSED   FAILED  SKIPPED        S"
        for what, part in [*sorted(self.parts.items()), ("all", total)]:
            counts = (part.items, part.passed, part.failed, part.skipped, round(part.seconds))
            yield f"{what:{_WHAT}.{_WHAT}}" + "".join(f"{count:9}" for count in counts)
            total.items, total.failed = total.items + part.items, total.failed + part.failed
            total.skipped, total.seconds = total.skipped + part.skipped, total.seconds + part.seconds
        yield f"seed {self.seed}; {seconds // 60:.0f} min {seconds % 60:.0f} s in all. S: seconds of all workers."
        if again := [*map(self.again, sorted(self.failures)), *self.commands]:
            yield "To run what failed again:"
            yield from again

    def again(self, test: str) -> str:
        """Return the command that runs this test with this seed."""
        word = test if _PLAIN.fullmatch(test) else shlex.quote(test).replace("$", "$$")
        return f"make soak SEED={self.seed} K={shlex.quote(word)}"
