"""What tests of `doctor` share."""

from collections.abc import Callable, Iterable

from issuer import Issuer
from issuer.care.doctor.findings import Facts
from issuer.values import Finding

Opened = Callable[..., Issuer]
Check = Callable[[Facts], Iterable[Finding]]
Fires = Callable[[Issuer, Check, str], Finding]


def levels(findings: list[Finding], check: str) -> set[tuple[str, str]]:
    """Which levels the check came to, and of what."""
    return {(finding.level, finding.subject) for finding in findings if finding.check == check}


def weak(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.level == "weak"]


def of_check(ids: Issuer, check: str) -> list[Finding]:
    """What a doctor finds by one check, besides that all is well."""
    return [each for each in ids.doctor() if each.check == check and each.level != "ok"]
