"""Guards are checks that prevent a duplicate. Without a guard, a run must find duplicates.

Guards are removed only in the drawing processes.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from issuer.chaos.world import Terms, World
from issuer.core.steps import Steps, ask
from issuer.core.supply import direct, extend, rejoin, state
from issuer.engine.blocking import Engine
from issuer.errors import ConfigurationError
from issuer.gateway import commands, tag_scripts
from issuer.gateway.commands import NAMES, RedisCall, Script, script
from issuer_persistence.ledger import Reservation

Change = tuple[str, str]

_INFO = "local info = redis.call('INFO', 'replication')\n"
_AS_RUN_ID = """info = string.gsub(info, '\\nmaster_replid:%x+',
  '\\nmaster_replid:' .. string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'))
"""
_RUN_ID = (_INFO, _INFO + _AS_RUN_ID)
_FENCE = ("if fenced then\n", "if false then\n")
_PREFIX = ("'\\nmaster_replid:' .. fence .. '\\r'", "fence")
_ARM = "  redis.call('HSET', key, 'cur', at, 'max', at, 'mark', at, 'fence', reign, 'born', fresh, 'store', store_id,\n"
_ARMED_WITH_NUMBERS = (
    "  if not missing then return redis.call('HSET', key, 'fence', reign, 'born', fresh, 'store', store_id) end\n"
)
_BORN = ("if born ~= seen_born then return {'stale', 'born'} end\n", "")
_BELOW = ("if less(low, top) then return {'stale', 'below'} end\n", "")
_EXHAUSTED = (
    "if not next_max then\n",
    "if not next_max then redis.call('HINCRBY', key, 'max', 1000) return {'exhausted'} end\nif not next_max then\n",
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard. `what`: what the guard ensures.

    To remove it, first replace the texts of `scripts` (for each script, pairs of old and new text), then call `patch`.
    """

    what: str
    scripts: Mapping[str, Sequence[Change]] | None = None
    patch: Callable[[], None] | None = None


def _load_again() -> None:
    """Let the driver repeat a `load` after its reply was lost, like redis-py with its default settings."""
    intact = tag_scripts.load

    def load(*args: Any, **options: Any) -> RedisCall[tag_scripts.Loaded]:
        return replace(intact(*args, **options), repeatable=True)

    tag_scripts.load = load


def _forget_rejoin() -> None:
    # The module `rejoin` imports `floor` with `from ... import`, so replace it there, not in `issuer.core.floor`.
    vars(rejoin)["floor"] = lambda *_: iter(())


def _forget_fork() -> None:
    Engine.after_fork = lambda _: None  # type: ignore[method-assign,assignment]


def _ignore_what_is_taken() -> None:
    intact = extend.reserve_and_load

    def reserve_and_load(*args: Any, **options: Any) -> Steps[extend.Extension]:
        return intact(*args, **{**options, "at_least": 0})

    vars(extend)["reserve_and_load"] = reserve_and_load


GUARDS: dict[str, Guard] = {
    "fence": Guard("a draw in another term of the Redis master is rejected", {"next": [_FENCE], "lease": [_FENCE]}),
    "prefix": Guard(
        "the term is identified by master_replid, not by master_replid2", {"next": [_PREFIX], "lease": [_PREFIX]}
    ),
    "replid": Guard("the term is identified by master_replid, not by run_id", {name: [_RUN_ID] for name in NAMES}),
    "arming": Guard(
        "a hash that is prepared for a new term loses its numbers", {"open": [(_ARM, _ARMED_WITH_NUMBERS + _ARM)]}
    ),
    "born": Guard("a load is rejected if the hash was prepared again in the meantime", {"load": [_BORN]}),
    "below": Guard("a load of numbers below those issued is rejected", {"load": [_BELOW]}, _ignore_what_is_taken),
    "reserved": Guard("only the store reserves numbers", {"next": [_EXHAUSTED], "lease": [_EXHAUSTED]}),
    "load-once": Guard("a load is sent only once", None, _load_again),
    "rejoin": Guard("Redis skips the numbers that processes issued without it", None, _forget_rejoin),
    "fork": Guard("a forked child drops the numbers that its parent holds", None, _forget_fork),
}


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


GUARDS |= {
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


@dataclass(frozen=True, slots=True)
class MoreTerms(Terms):
    """`without`: guards to remove."""

    without: tuple[str, ...] = ()


def removed(world: World) -> tuple[str, ...]:
    """Return the guards that the workers of this world lack."""
    return world.terms.without if isinstance(world.terms, MoreTerms) else ()


def scripts_without(names: Sequence[str]) -> Mapping[str, Script]:
    """Return the scripts without these guards. Raises ConfigurationError if a guard is unknown or not in its script."""
    texts = {name: script(name).text for name in NAMES}
    for name in names:
        if name not in GUARDS:
            raise ConfigurationError(f"unknown guard {name!r}; the guards are {', '.join(GUARDS)}")
        for at, changes in (GUARDS[name].scripts or {}).items():
            for old, new in changes:
                if texts[at].count(old) != 1:
                    raise ConfigurationError(f"guard {name}: {at}.lua has {texts[at].count(old)} times: {old}")
                texts[at] = texts[at].replace(old, new)
    return {
        name: Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
        for name, text in texts.items()
    }


def take_out(names: Sequence[str]) -> None:
    """Remove these guards from this process. Raises ConfigurationError."""
    mutated = scripts_without(names)
    for name in names:
        patch = GUARDS[name].patch
        if patch is not None:
            patch()
    if mutated != {name: script(name) for name in NAMES}:
        vars(commands)["script"] = mutated.__getitem__
        # If a strict tag goes back to lower numbers, the process itself rejects them. Remove this check too: it would
        # hide that the guard is missing in the scripts.
        state.TagState.went_back = lambda *_: False  # type: ignore[method-assign]
