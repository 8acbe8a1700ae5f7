"""Guards that only faults of these tests can miss. Importing this module lets `take_out` remove them too."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from issuer.chaos.guards import GUARDS, Guard, take_out
from issuer.core.steps import Steps, ask
from issuer.core.supply import direct
from issuer.gateway.commands import NAMES
from issuer_persistence.ledger import Reservation

__all__ = ["MORE_GUARDS", "hand_back_whatever_the_version", "take_out"]

_ROLE = ("if not string.find(info, '\\nrole:master\\r', 1, true) then return {'notmaster'} end", "")
_SET_BACK = ("if since and now >= since and now - since <= window then", "if since and now - since <= window then")
_KEPT = ("local kept = redis.call('GET', KEYS[2])\n", "local kept = false\n")
_SKIPS = ("if less(cur, at) then cur = at end\n", "cur = at\n")
_BACKS = (
    "if not last and (seen_backs ~= backs_before or less(backs_low, high)) then return {'spent', 'backs'} end\n",
    "",
)
_UNMOVED = ("if cur ~= high then return {'spent', 'cur'} end\n", "")
_HELD = ("if owner and now <= lapses + margin then", "if false then")
_CEILING = ("local floor = string.format('%.0f', math.max(last, since + hold))\n", "local floor = '0'\n")


def hand_back_whatever_the_version(held: Sequence[Reservation], used: int) -> Steps[int]:
    """Do the same as `direct.hand_back`, as if the store compared `max` only."""
    last = held[-1]
    there = yield from ask(lambda store, timeout: store.get(last.tag.tag, timeout=timeout))
    return (yield from _hand_back([*held[:-1], replace(last, tag=there or last.tag)], used))


_hand_back = direct.hand_back


def _ignore_version() -> None:
    vars(direct)["hand_back"] = hand_back_whatever_the_version


def _serve_in_doubt() -> None:
    """Let a process issue numbers that it handed back, if the store's reply was lost, instead of its next segment."""
    reserve = direct.reserve
    doubtful: dict[str, Reservation] = {}

    def hand_back(held: Sequence[Reservation], used: int) -> Steps[int]:
        try:
            return (yield from _hand_back(held, used))
        except Exception:
            last = held[-1]
            doubtful[last.tag.tag] = replace(last, low=max(used, last.low))
            raise

    def reserve_or_serve(tag: str, **options: Any) -> Steps[Reservation]:
        return doubtful.pop(tag, None) or (yield from reserve(tag, **options))

    vars(direct).update(hand_back=hand_back, reserve=reserve_or_serve)


MORE_GUARDS = {
    "role": Guard("a server that isn't a master is rejected", {name: [_ROLE] for name in NAMES}),
    "version": Guard("a segment is returned only once, checked by its version", None, _ignore_version),
    "forgotten": Guard("a process issues no number that it has returned, whatever the reply", None, _serve_in_doubt),
    "unmoved": Guard("a lease is returned only if no number was drawn after it", {"giveback": [_UNMOVED]}),
    "backs": Guard("a lease is returned only once", {"giveback": [_BACKS]}),
    "skips": Guard("skipping numbers never lowers the counter of a hash", {"floor": [_SKIPS]}),
    "set-back": Guard(
        "an election with a time in the future is ignored",
        {name: [_SET_BACK] for name in ("next", "lease", "once", "open")},
    ),
    "kept": Guard("an idempotency key keeps its number", {"once": [_KEPT]}),
    "held": Guard("a machine number in use is not leased to another process", {"machine_claim": [_HELD]}),
    "ceiling": Guard(
        "the next holder of a machine number starts above the last time used",
        {"machine_claim": [_CEILING]},
    ),
}
GUARDS.update(MORE_GUARDS)
