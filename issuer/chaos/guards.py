"""Guards are checks that prevent a duplicate. Without a guard, a run must find duplicates.

Guards are removed only on request (--without), and only in the drawing processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from issuer.core.steps import Steps
from issuer.core.supply import extend, rejoin, state
from issuer.engine.blocking import Engine
from issuer.errors import ConfigurationError
from issuer.gateway import commands, tag_scripts
from issuer.gateway.commands import NAMES, RedisCall, Script, script

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
