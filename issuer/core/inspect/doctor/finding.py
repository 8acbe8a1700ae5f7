"""Findings of `doctor`, one fact each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from issuer.errors import IssuerError

#: "weak": numbers could repeat, order could break, or the service stops, with or without a warning.
#: "advice": a fault would cost more than it has to. "ok": looked at and well. "unknown": could not be seen.
Level = Literal["weak", "advice", "unknown", "ok"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `check`: the name of the check, for programs. `subject`: the server, store, setting or tag it is of.

    what: what was seen. why: what it means for the numbers. remedy: what to do; "" if it is well. tag: the tag
    concerned, or None. error: what kept a server from being looked at, None if it was.
    """

    check: str
    level: Level
    subject: str
    what: str
    why: str
    remedy: str = ""
    tag: str | None = None
    error: IssuerError | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one subject; its methods make its findings. See `Finding` for what they take."""

    name: str
    subject: str
    tag: str | None = None

    def weak(self, what: str, why: str, remedy: str, *, error: IssuerError | None = None) -> Finding:
        """Report harm."""
        return Finding(self.name, "weak", self.subject, what, why, remedy, self.tag, error)

    def advice(self, what: str, why: str, remedy: str) -> Finding:
        """Recommend something."""
        return Finding(self.name, "advice", self.subject, what, why, remedy, self.tag)

    def unknown(self, what: str, why: str, remedy: str) -> Finding:
        """Report what could not be seen."""
        return Finding(self.name, "unknown", self.subject, what, why, remedy, self.tag)

    def ok(self, what: str, why: str) -> Finding:
        """Report that it is well."""
        return Finding(self.name, "ok", self.subject, what, why)
