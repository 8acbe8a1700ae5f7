"""The mutations of mutations.toml: which guard is taken out, what harm follows, and which tests find it."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.generate import GENERATED

REPOSITORY = Path(__file__).resolve().parents[3]
_LIST = Path(__file__).with_name("mutations.toml")
_OTHER = {"aio": "blocking", "blocking": "aio"}
_NAMED = re.compile(r"\b(?:aio|blocking)\b")


@dataclass(frozen=True)
class Mutation:
    """One guard taken out of a copy of the checkout."""

    name: str
    file: str
    old: str
    new: str
    harm: str
    tests: Sequence[str]
    #: If the file has a counterpart in the other colour: the mutation of that colour with the same harm, or why the
    #: other colour has no such guard.
    twin: str = ""
    alone: str = ""

    def problem(self, root: Path = REPOSITORY) -> str:
        """Say why it can't be made, "" if it can."""
        times = (root / self.file).read_text(encoding="utf-8").count(self.old)
        missing = [test for test in self.tests if not _is_there(root, test)]
        if times != 1:
            return f"{self.name}: its guard stands {times} times in {self.file}, and must stand there once"
        if not self.tests or missing:
            return f"{self.name}: no such tests: {missing or 'none is named'}"
        if self.file.removeprefix("issuer/") in GENERATED:
            return f"{self.name}: {self.file} is generated, and has no guards"
        if bool(self.twin) + bool(self.alone) != bool(self.counterpart):
            return f"{self.name}: its counterpart is {self.counterpart or 'none'}: either `twin` or `alone` names it"
        return ""

    @property
    def colour(self) -> str:
        """The colour of the file, "" if it belongs to both."""
        return next((part for part in Path(self.file).with_suffix("").parts if part in _OTHER), "")

    @property
    def counterpart(self) -> str:
        """The file that is written for the other colour, "" if there is none."""
        found = self.colour and _NAMED.sub(_OTHER[self.colour], self.file)
        return found if (REPOSITORY / found).is_file() else ""

    def applied(self, root: Path) -> None:
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        assert self.old in text, f"{self.file} was changed meanwhile"
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")

    def undone(self, root: Path) -> None:
        (root / self.file).write_bytes((REPOSITORY / self.file).read_bytes())


def _is_there(root: Path, test: str) -> bool:
    file, *names = test.partition("[")[0].split("::")
    source = (root / file).read_text(encoding="utf-8") if (root / file).is_file() else ""
    return (root / file).exists() and all(re.search(rf"(def|class) {name}\b", source) for name in names)


def mutations() -> list[Mutation]:
    """Return all of them, in the order of the file."""
    listed = tomllib.loads(_LIST.read_text(encoding="utf-8"))
    return [Mutation(name, **fields) for name, fields in listed.items()]
