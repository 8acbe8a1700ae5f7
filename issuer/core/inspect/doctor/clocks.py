"""Findings about clocks: what it means if a server's and this machine's differ."""

from __future__ import annotations

from issuer.core.inspect.doctor.facts import Clock
from issuer.core.inspect.doctor.finding import Check, Finding

#: Machines whose clocks are kept by NTP are less than 100 ms apart: from here on one of them isn't kept.
APART = 2_000

#: A twentieth of the 20 minutes that a segment should last: from here on rate and runway, which come from the ledger's
#: times, and the answer to "who got this number, and when?" are wrong, and a warning of either comes too late.
FAR_APART = 60_000

_WHY = (
    "No number depends on it: reservations compare no clocks, and an election uses Redis's clock alone. But "
    "`timestamp` and the ledger carry the time of the machine that wrote them, so "
)


def compared(check: str, subject: str, clock: Clock | None) -> Finding:
    """Judge how far apart the clocks are, to the benefit of the doubt that the round trip leaves."""
    if clock is None:
        return Check(check, subject).unknown(
            "its clock could not be read", _WHY + "they mislead if clocks differ.", "Compare `date` on both machines."
        )
    apart = max(0, abs(clock.ahead) - clock.doubt)
    way = "ahead of" if clock.ahead > 0 else "behind"
    if apart < APART:
        return Check(check, subject).ok("its clock agrees with this machine's", _WHY + "they can be relied on.")
    what = f"its clock is {apart / 1000:.1f} s {way} this machine's"
    remedy = "Run NTP (chrony, systemd-timesyncd) on both machines; `date` on each shows which one is wrong."
    if apart < FAR_APART:
        return Check(check, subject).advice(what, _WHY + "they are off by that much.", remedy)
    why = _WHY + "rate, runway and the answer to 'who got this number, and when?' are wrong."
    return Check(check, subject).weak(what, why, remedy)
