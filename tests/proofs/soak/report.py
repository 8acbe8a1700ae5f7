"""What a run of `make soak` has done, as text, and how to run each failure again."""

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

#: Cells of what ran; with its figures it takes 100.
_WHAT = 55
#: What a shell leaves as it is.
_PLAIN = re.compile(r"[\w./:\[\]=,@%+-]+")


@dataclass
class Run:
    """One run. `parts`: what ran of a folder, or a command that is no test of pytest, with the time of all its workers.

    `failures`: the ids of tests; `commands`: the command lines, beside tests, that failed.
    """

    seed: int
    parts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    failures: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def ended(self, test: str, outcomes: set[str], seconds: float) -> None:
        """Count a test whose setup, call and teardown came to these outcomes."""
        worst = next((each for each in ("failed", "skipped") if each in outcomes), "passed")
        folder = test.partition("::")[0].rpartition("/")[0]
        self.parts[folder].update({"items": 1, worst: 1, "ms": round(seconds * 1000)})
        if worst == "failed":
            self.failures.append(test)

    def commanded(self, line: str, code: int, seconds: float) -> None:
        self.parts[line].update({"items": 1, "failed" if code else "passed": 1, "ms": round(seconds * 1000)})
        if code:
            self.commands.append(f"ISSUER_TEST_SEED={self.seed} .venv/bin/{line}")

    def lines(self, seconds: float) -> Iterator[str]:
        """Yield the report; `seconds`: how long all of it took."""
        yield f"{'WHAT':{_WHAT}}    ITEMS   PASSED   FAILED  SKIPPED        S"
        for what, part in [*sorted(self.parts.items()), ("all", sum(self.parts.values(), Counter[str]()))]:
            counts = (part[name] for name in ("items", "passed", "failed", "skipped"))
            yield f"{what:{_WHAT}.{_WHAT}}" + "".join(f"{count:9}" for count in (*counts, round(part["ms"] / 1000)))
        yield f"seed {self.seed}; {seconds // 60:.0f} min {seconds % 60:.0f} s in all. S: seconds of all workers."
        if again := [*map(self.again, sorted(self.failures)), *self.commands]:
            yield "To run what failed again:"
            yield from again

    def again(self, test: str) -> str:
        """Return the command that runs this test with this seed."""
        word = test if _PLAIN.fullmatch(test) else shlex.quote(test).replace("$", "$$")
        return f"make soak SEED={self.seed} K={shlex.quote(word)}"
