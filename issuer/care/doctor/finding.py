"""Findings of `doctor`, one fact each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from issuer.advice import Words, filled, python
from issuer.errors import IssuerError

#: "weak": numbers could repeat, order could break, or the service stops, with or without a warning.
#: "advice": a fault would cost more than it has to. "ok": looked at and well. "unknown": could not be seen.
Level = Literal["weak", "advice", "unknown", "ok"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of `doctor`.

    Attributes:
        check: Name of the check, for programs.
        level: Severity. "weak": duplicates, lost order or an outage are possible. "advice": a fault would do more harm
            than necessary. "ok": there is no problem. "unknown": the check was not possible, for example because a
            server did not answer.
        subject: The server, store, setting or tag that was checked.
        what: Fact that was found.
        why: Consequence of the fact for the numbers.
        advice: Recommended action, as a template. `remedy` is the readable form.
        tag: Name of the tag concerned, or None.
        error: Error that prevented the check, or None.
        others: Other tags that the advice names.
    """

    check: str
    level: Level
    subject: str
    what: str
    why: str
    advice: str = ""
    tag: str | None = None
    error: IssuerError | None = None
    others: Mapping[str, str] = field(default_factory=dict)

    def told(self, words: Words) -> str:
        """Return the recommended action in the words of one interface: Python, command line or HTTP. "" for "ok"."""
        return filled(self.advice, words, self.tag, self.others)

    @property
    def remedy(self) -> str:
        """Recommended action, in terms of Python. "" for level "ok"."""
        return self.told(python)


@dataclass(frozen=True, slots=True)
class Check:
    """Check of one subject. Each method makes a finding of one level; see `Finding` for the arguments."""

    name: str
    subject: str
    tag: str | None = None

    def weak(self, what: str, why: str, do: str, *, error: IssuerError | None = None, **others: str) -> Finding:
        """Return a finding of the level "weak"."""
        return Finding(self.name, "weak", self.subject, what, why, do, self.tag, error, others)

    def advice(self, what: str, why: str, do: str, **others: str) -> Finding:
        """Return a finding of the level "advice"."""
        return Finding(self.name, "advice", self.subject, what, why, do, self.tag, None, others)

    def unknown(self, what: str, why: str, do: str) -> Finding:
        """Return a finding of the level "unknown"."""
        return Finding(self.name, "unknown", self.subject, what, why, do, self.tag)

    def ok(self, what: str, why: str) -> Finding:
        """Return a finding of the level "ok"."""
        return Finding(self.name, "ok", self.subject, what, why)
