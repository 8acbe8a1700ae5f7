"""Report of a run, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from issuer.chaos.checker import Verdict
from issuer.times import lasting


def rows(verdict: Verdict) -> Iterator[tuple[str, str]]:
    yield "faults", f"{verdict.struck:,}"
    for name, times in sorted(verdict.faults.items()):
        yield "", f"{name}: {times}"
    yield "numbers", f"{verdict.acknowledged:,} acknowledged, of {verdict.attempted:,} requested"
    if verdict.errors:
        told = ", ".join(f"{name} {times}" for name, times in verdict.errors.most_common())
        yield "errors", told
    yield "duplicates", f"{verdict.repeats:,}"
    yield "above max", f"{verdict.above:,}"
    yield "order violations", f"{verdict.disorder:,}"
    if verdict.changed:
        yield "keys with two numbers", f"{verdict.changed:,}"
    each = verdict.gap / verdict.struck if verdict.struck else 0
    yield "gaps", f"{verdict.gap:,}, {each:,.0f} per fault; {verdict.allowed_gap:,} allowed"
    for name, cost in sorted(verdict.costs.items()):
        if cost.gap:
            worst = f"largest {cost.worst:,} per tag, allowed {cost.allowed:,}"
            yield "", f"{name}: {cost.gap:,}, {worst}{f', {cost.over} OVER' * bool(cost.over)}"
    outage = "none" if verdict.without_service <= 0 else f"at most {lasting(verdict.without_service)}"
    yield "outages", f"{outage}{f', {verdict.slowest}' * bool(verdict.slowest)}"
    yield "past a deadline", f"at most {lasting(verdict.latest)}" if verdict.latest > 0 else "never"
    for example in verdict.examples:
        yield "example", example
    for reason in verdict.stuck:
        yield "stuck", reason.replace("\n", "; ")


def content(verdict: Verdict) -> dict[str, Any]:
    """Return the report for JSON. Times are in seconds."""
    return {
        "kept": verdict.kept,
        "faults": dict(sorted(verdict.faults.items())),
        "attempted": verdict.attempted,
        "acknowledged": verdict.acknowledged,
        "errors": dict(verdict.errors),
        "repeats": verdict.repeats,
        "above_max": verdict.above,
        "order_violations": verdict.disorder,
        "keys_with_two_numbers": verdict.changed,
        "gap": verdict.gap,
        "gap_allowed": verdict.allowed_gap,
        "gaps": {name: asdict(cost) for name, cost in sorted(verdict.costs.items())},
        "without_service": verdict.without_service,
        "slowest": verdict.slowest,
        "past_deadline": max(0.0, verdict.latest) if verdict.acknowledged else None,
        "examples": verdict.examples,
        "stuck": verdict.stuck,
    }
