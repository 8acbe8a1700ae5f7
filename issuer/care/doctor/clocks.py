"""Findings about clocks: what it means if a server's and this machine's differ."""

from __future__ import annotations

from issuer.care.doctor.facts import Clock
from issuer.care.doctor.finding import Check, Finding
from issuer.times import lasting

#: With NTP, clocks differ by less than 100 ms. From this difference on, one of them isn't synchronized.
APART = 2_000

#: A twentieth of the 20 minutes that a segment should last. From this difference on, rate and runway, which are
#: computed from the ledger's times, are wrong, and so are the times that `who` shows.
FAR_APART = 60_000

_WHY = (
    "Numbers stay unique and in order with any clocks. But `timestamp` and the times in the ledger come from the clock "
    "of the machine that wrote them. "
)


def compared(check: str, subject: str, clock: Clock | None) -> Finding:
    """Judge how far apart the clocks are, to the benefit of the doubt that the round trip leaves."""
    if clock is None:
        return Check(check, subject).unknown(
            "its clock could not be read",
            _WHY + "If clocks differ, these times are wrong.",
            "Compare the output of `date` on both machines.",
        )
    apart = max(0, abs(clock.ahead) - clock.doubt)
    way = "ahead of" if clock.ahead > 0 else "behind"
    if apart < APART:
        return Check(check, subject).ok("its clock agrees with this machine's", _WHY + "These times are right.")
    what = f"its clock is {lasting(apart / 1000)} {way} this machine's"
    remedy = "Run NTP (chrony, systemd-timesyncd) on both machines. The output of `date` shows which clock is wrong."
    if apart < FAR_APART:
        return Check(check, subject).advice(what, _WHY + "These times are wrong by this difference.", remedy)
    why = _WHY + "So the rate, the runway and the times that `who` shows are wrong."
    return Check(check, subject).weak(what, why, remedy)
