"""The long run: python -m tests.chaos [--times 20] [--long] [--without GUARD] [--out build/chaos.json]

Every fault so many times, in worlds that are made anew after some dozens; each world's numbers are checked when it
ends. What the bars are stands in BARS; the exit code is 1 if one is missed, and 4 if a promise was broken.

The store of SQLite lies on a small disk of its own, which F19 fills: "F19 disk full (ENOSPC)". Where this machine lets
nobody mount one, the processes may write no larger files instead: "F19 disk full (limit)".
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from issuer.cli.chaos.checker import Verdict
from issuer.cli.chaos.faults import Fault, chosen
from issuer.cli.chaos.play import play
from issuer.cli.chaos.report import content, rows
from issuer.cli.chaos.world import Terms
from issuer.cli.ending import ending_in_order
from issuer.cli.text import Column, table
from tests.chaos.kinds import KINDS, Kind
from tests.chaos.more import LASTS
from tests.chaos.worlds import binary, folder
from tests.servers.binaries import find_servers
from tests.servers.disks import run_with_mounts, small_disk

#: By name: how it is said, and whether it was met.
BARS: dict[str, tuple[str, Callable[[Verdict], bool]]] = {
    "numbers": ("20 million numbers", lambda found: found.acknowledged >= 20_000_000),
    "faults": ("400 faults", lambda found: found.struck >= 400),
    "repeats": ("no repeat", lambda found: found.repeats == 0),
    "above": ("none above max", lambda found: found.above == 0),
    "order": ("no order violation", lambda found: found.disorder == 0),
    "keys": ("no key with two numbers", lambda found: found.changed == 0),
    "gap": ("gaps within the design's bound", lambda found: found.gap <= found.allowed_gap),
    "costs": ("the gap of each event within its own bound", lambda found: not found.costly),
    "service": ("service back within 2 s of the servers", lambda found: found.without_service <= 2.0),
    "deadline": ("no call past its deadline + 0.5 s", lambda found: found.latest <= 0.5),
    "stuck": ("no run stuck", lambda found: not found.stuck),
}


def named(names: str) -> list[Fault]:
    """Return the faults that these words choose, of all kinds of worlds."""
    return chosen(names.split(",") if names else [], [fault for kind in KINDS for fault in kind.faults])


def seldom(found: Verdict, wanted: Sequence[Fault], times: int) -> list[str]:
    """Tell which of these faults have had fewer turns, and how many: no server for them was here, or a run ended."""
    return [f"{fault.name} {found.turns[fault.name]}" for fault in wanted if found.turns[fault.name] < times]


def bouts(wanted: Sequence[Fault], times: int) -> Iterator[tuple[Kind, list[Fault]]]:
    """Yield kinds of worlds and what is to be done to one, until every fault that is wanted has had its turns."""
    for kind in KINDS:
        plan = [fault for fault in kind.faults if fault in wanted] * times
        if plan and not kind.here():
            print(f"{kind.name}: left out, as this machine has no server for it", flush=True)
            continue
        random.shuffle(plan)
        for at in range(0, len(plan), kind.bout):
            yield kind, plan[at : at + kind.bout]


def run(arguments: argparse.Namespace) -> Verdict:
    """Play all bouts, on each kind of server that is here in turn, and return what was found in all."""
    # Fast enough for 20 million numbers: a number's cost lies in its call, so a call brings many.
    terms = Terms(step=200_000, lease=5_000, pace=0.002, most=1_000, without=tuple(arguments.without), journal=True)
    servers = [binary()] if arguments.one_server else [*find_servers().values()] or [binary()]
    total = Verdict()
    for number, (kind, faults) in enumerate(bouts(named(arguments.faults), arguments.times)):
        begun = time.monotonic()
        server = kind.server(servers[number % len(servers)])
        with folder() as path, small_disk(path / "store"), kind.make(path, server, terms) as world:
            drew = time.monotonic()
            found = play(world, faults)
        total.add(found)
        print(
            f"{kind.name:12} {server.parts[-1]:16} {found.struck:3} faults in {drew - begun:.0f} + "
            f"{time.monotonic() - drew:.0f} s, {found.acknowledged:10} numbers, {found.repeats} repeats, "
            f"{found.disorder} out of order, {found.without_service:.2f} s without {found.slowest}"
            f"{''.join(f', STUCK: {reason}' for reason in found.stuck)}",
            flush=True,
        )
    return total


def main() -> int:
    """Run, report, and say whether the bars were met."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="how often each fault strikes; 20")
    parser.add_argument("--faults", default="", help="only these, as in F2,F9b")
    parser.add_argument("--long", action="store_true", help="two masters serve for 30 s, a loader is stopped for 10 s")
    parser.add_argument("--without", action="append", default=[], help="take a guard out first; may be repeated")
    parser.add_argument("--one-server", action="store_true", help="only the server that tests prefer")
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"), help="where the figures go")
    arguments = parser.parse_args()
    if arguments.long:
        LASTS.update({"both alive": 30.0, "stopped": 10.0})
    begun = time.monotonic()
    with ending_in_order():
        found = run(arguments)
    short = seldom(found, named(arguments.faults), arguments.times)
    missed = [said for said, met in BARS.values() if not met(found)]
    missed += [f"each fault {arguments.times} times ({', '.join(short)})"] * bool(short)
    print(table([Column("FOUND"), Column("")], [*rows(found)], None))
    print(f"{time.monotonic() - begun:.0f} s; missed: {', '.join(missed) or 'nothing'}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**content(found), "turns": found.turns, "missed": missed}, indent=2) + "\n")
    return 4 if not found.sound else 1 if missed else 0


if __name__ == "__main__":
    run_with_mounts("tests.chaos")
    sys.exit(main())
