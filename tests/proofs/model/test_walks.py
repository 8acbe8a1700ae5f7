"""The model goes where the real scripts go, on long random walks; a change of either is seen."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from issuer.core.steps import Steps
from issuer.core.supply import extend as core
from issuer.core.supply.extend import Extension
from tests.lua.hashes import Change, mutated
from tests.lua.test_fence import FENCE, NOTMASTER
from tests.proofs.model.extension import ExtensionWalk
from tests.proofs.model.store_walk import DisagreementError
from tests.proofs.model.walk import Walk
from tests.seeds import seeded
from tests.servers.binaries import find_servers
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.live

Start = Callable[..., RedisServer]

#: What walks must have met to be worth anything: every status of the scripts, each with its reason.
MET = {
    *("next ok", "next exhausted", "next empty", "next fenced", "next notmaster"),
    *("lease ok", "lease exhausted", "lease empty", "lease fenced", "lease notmaster", "lease corrupt"),
    *("giveback back", "giveback spent missing", "giveback spent reign", "giveback spent born", "giveback spent cur"),
    "giveback spent backs",
    *("next scheme", "next over", "lease scheme", "lease over"),
    *("once ok", "once again", "once exhausted", "once empty", "once fenced", "once scheme", "once over"),
    "once older",
    *("once notmaster", "giveback notmaster"),
    *("open open", "open otherscheme", "open notmaster"),
    *("load current", "load next", "load full", "load notmaster"),
    *("load stale missing", "load stale reign", "load stale born", "load stale below"),
    *("floor floored", "floor notmaster", "reserve ok", "reserve behind", "reserve halted"),
    *("reserve full", "change True", "change False", "limit True", "limit False"),
    *("hand_back True", "hand_back False"),
}


def pair(start: Start, binary: Path | None = None) -> list[RedisServer]:
    """Two masters. A script that forgets to ask for the role may write to a replica, and be seen."""
    return [start("--replica-read-only", "no", binary=binary) for _ in range(2)]


def seeds(*fixed: int) -> pytest.MarkDecorator:
    """Walk by these; in `make soak` by twenty that are fresh."""
    return pytest.mark.parametrize(
        "seeds", [fixed, pytest.param([seeded(each) for each in range(100, 120)], marks=pytest.mark.soak)]
    )


@pytest.mark.covers("1.11")
@seeds(1, 2, 3, 10)
def test_the_model_walks_as_the_real_scripts_do(seeds: Sequence[int], start_redis: Start) -> None:
    servers = pair(start_redis)
    met: set[str] = set()
    for seed in seeds:
        walk = Walk([server.wipe().start() for server in servers], seed)
        walk.go(700)
        met |= walk.seen
    assert MET - met == set()


@pytest.mark.parametrize("name", find_servers())
def test_it_does_so_on_each_server(name: str, start_redis: Start) -> None:
    """Servers of other ages and makers name their reigns at other moments; what the scripts do is the same."""
    walk = Walk(pair(start_redis, find_servers()[name]), 4, changing=50)
    walk.go(700)
    assert {"next fenced", "next notmaster", "load stale reign"} <= walk.seen


ELECTED = ("if since and now >= since and now - since <= window then return false end", "")
HDEL_ASKED = "redis.call('HDEL', key, 'asked')\n"
ROW = "if not last and (seen_backs ~= backs_before or less(backs_low, high)) then return {'spent', 'backs'} end\n"

#: Changes of the scripts, harmful or not, by what is done then: whoever makes one changes the model first.
CHANGES: dict[str, tuple[str, Change]] = {
    "next without its fence": ("next", FENCE),
    "next on a replica": ("next", NOTMASTER),
    "next elects again and again": ("next", ELECTED),
    "next without the clamp": ("next", ("if less(max, high) then high = max end", "")),
    "next elects without a name": ("next", (" .. (claimant or '')", "")),
    "next for another scheme": ("next", ("if found ~= scheme then return {'scheme', found} end\n", "")),
    "next in a period that is over": ("next", ("if not less(clock, till) then", "if false then")),
    "once without a look at what is kept": ("once", ("if kept then", "if false then")),
    "once whatever its caller has seen": ("once", ("if whole(low) and less(low, seen)", "if false")),
    "once keeps nothing": ("once", ("redis.call('SET', KEYS[2], high .. ':' .. scheme, 'PX', ttl)\n", "")),
    "lease without its fence": ("lease", FENCE),
    "open keeps numbers of another reign": ("open", ("if not current or not born", "if missing or not born")),
    "open for another scheme": ("open", ("if not missing and scheme ~= own then", "if false then")),
    "open for another scheme in a new reign": ("open", ("if not missing and scheme", "if current and scheme")),
    "open ignores who was elected": ("open", ELECTED),
    "open knows nobody again": ("open", ("elect(not (mine and claimant) and asked)", "elect(asked)")),
    "open takes those without a name for one": (
        "open",
        ("elect(not (mine and claimant) and asked)", "elect(not mine and asked)"),
    ),
    "open ends another's election": ("open", ("if mine then redis.call('HDEL'", "if true then redis.call('HDEL'")),
    "open elects who only looks": ("open", ("elseif due and role ~= 'look' then", "elseif due then")),
    "open keeps an election that was given up": ("open", ("if role == 'resign' then", "if role == 'never' then")),
    "load in another reign": ("load", ("if not current or seen_reign ~= reign then", "if false then")),
    "load with another born": ("load", ("if born ~= seen_born then", "if false then")),
    "load below the top": ("load", ("if less(low, top) then", "if false then")),
    "load into a full hash": ("load", ("if next_max then return {'full'} end\n", "")),
    "load leaves the election": ("load", (HDEL_ASKED, "")),
    "floor keeps born": ("floor", ("arm(highest, fresh, ", "arm(highest, born or fresh, ")),
    "floor lowers cur": ("floor", ("if less(cur, at) then cur = at end", "cur = at")),
    "floor keeps numbers of another scheme": ("floor", ("not same or ", "")),
    "floor leaves the election": ("floor", (HDEL_ASKED, "")),
    "giveback wherever cur stands": ("giveback", ("if cur ~= high then", "if false then")),
    "giveback however often": ("giveback", (ROW, "")),
    "giveback below what came back": ("giveback", (" or less(backs_low, high)", "")),
    "giveback leaves the election": ("giveback", ("if less(used, mark) then redis", "if false then redis")),
}


#: What shows only where a server changes its reign or its role, which takes up to half a second each time.
NEW_REIGNS = ("fence", "reign", "replica")


@pytest.mark.covers("N.1")
@pytest.mark.parametrize("change", CHANGES)
def test_a_script_that_was_changed_alone_leaves_the_model(change: str, start_redis: Start) -> None:
    servers, (script, replaced) = pair(start_redis), CHANGES[change]
    changing = 40 if any(word in change for word in NEW_REIGNS) else 0
    with pytest.raises(DisagreementError, match=r"seed 1, step \d+: "):
        Walk(servers, 1, texts=mutated(**{script: [replaced]}), changing=changing).go(3000)


# --------------------------------------------------------------------------------------- issuer.core.supply.extend

#: How an extension may end, and what it may want in between.
ENDINGS = {"open", "store", "load", *(f"ended: {how}" for how in ("loaded", "ready", "stale", "Halted", "StoreBehind"))}


@seeds(1, 2)
def test_the_model_extends_as_the_core_does(seeds: Sequence[int], start_redis: Start) -> None:
    server = start_redis()
    met: set[str] = set()
    for seed in seeds:
        walk = ExtensionWalk([server.wipe().start()], seed)
        walk.go(1500)
        met |= walk.seen
    assert ENDINGS - met == set()


def believing(*_: object, **__: object) -> Steps[None]:
    """Take no second look, and halt nothing."""
    yield from ()


def reserving(**otherwise: int) -> Callable[..., Steps[Extension]]:
    """Ask the store for a segment, whatever is taken, or wanted."""
    reserve_and_load = core.reserve_and_load
    return lambda *args, **asked: reserve_and_load(*args, **{**asked, **otherwise})


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("confirm_behind", believing),
        ("reserve_and_load", reserving(at_least=0)),
        ("reserve_and_load", reserving(wanted=0)),
    ],
)
def test_a_core_that_was_changed_alone_leaves_the_model(
    name: str, mutant: object, start_redis: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, name, mutant)
    with pytest.raises(DisagreementError):
        ExtensionWalk([start_redis()], 1).go(3000)
