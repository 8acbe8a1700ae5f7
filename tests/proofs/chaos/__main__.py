"""The long run: python -m tests.proofs.chaos [--times 20] [--long] [--without GUARD] [--out build/chaos.json]

Every fault so many times, in worlds that are made anew after some dozens; each world's numbers are checked when it
ends. The bars stand in `missed`; the exit code is 1 if one is missed, and 4 if a promise was broken.

The store of SQLite lies on a small disk of its own, which F19 fills: "F19 disk full (ENOSPC)". Where this machine lets
nobody mount one, the processes may write no larger files instead: "F19 disk full (limit)".
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from issuer.chaos.checker import Verdict
from issuer.chaos.faults import Fault
from issuer.chaos.play import play
from issuer.chaos.report import content, rows
from issuer.cli.exits import ending_in_order
from issuer.terminal import Column, table
from tests.proofs.chaos.guards import MoreTerms
from tests.proofs.chaos.kinds import BOUT, KINDS, Kind
from tests.proofs.chaos.more import LASTS
from tests.proofs.chaos.worlds import binary, folder, named
from tests.seeds import chosen
from tests.servers.binaries import find_servers
from tests.servers.disks import run_with_mounts, small_disk


def missed(found: Verdict, times: int) -> list[str]:
    """Tell which bars were not met by a run in which each fault struck so many times."""
    bars = {
        f"{times} million numbers": found.acknowledged >= times * 1_000_000,
        f"{20 * times} faults": found.struck >= 20 * times,
        "no repeat": found.repeats == 0,
        "none above max": found.above == 0,
        "no order violation": found.disorder == 0,
        "no key with two numbers": found.changed == 0,
        "gaps within the design's bound": found.gap <= found.allowed_gap,
        "the gap of each event within its own bound": not any(cost.over for cost in found.costs.values()),
        "service back within 2 s of the servers": found.without_service <= 2.0,
        "no call past its deadline + 0.5 s": found.latest <= 0.5,
        "no run stuck": not found.stuck,
    }
    return [said for said, met in bars.items() if not met]


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
        for at in range(0, len(plan), BOUT):
            yield kind, plan[at : at + BOUT]


def run(arguments: argparse.Namespace) -> Verdict:
    """Play all bouts, on each kind of server that is here in turn, and return what was found in all."""
    # Fast enough for 20 million numbers: a number's cost lies in its call, so a call brings many.
    terms = MoreTerms(step=200_000, lease=5_000, pace=0.002, most=1_000, without=tuple(arguments.without), journal=True)
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
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.chaos", description=__doc__)
    parser.add_argument("--times", type=int, default=20, help="how often each fault strikes; 20")
    parser.add_argument("--faults", default="", help="only these, as in F2,F9b")
    parser.add_argument("--long", action="store_true", help="two masters serve for 30 s, a loader is stopped for 10 s")
    parser.add_argument("--without", action="append", default=[], help="take a guard out first; may be repeated")
    parser.add_argument("--one-server", action="store_true", help="only the server that tests prefer")
    parser.add_argument("--out", type=Path, default=Path("build/chaos.json"), help="where the figures go")
    arguments = parser.parse_args()
    random.seed(chosen() or None)
    if arguments.long:
        LASTS.update({"both alive": 30.0, "stopped": 10.0})
    begun = time.monotonic()
    with ending_in_order():
        found = run(arguments)
    short = seldom(found, named(arguments.faults), arguments.times)
    failed = missed(found, arguments.times) + [f"each fault {arguments.times} times ({', '.join(short)})"] * bool(short)
    print(table([Column("FOUND"), Column("")], [*rows(found)], None))
    print(f"{time.monotonic() - begun:.0f} s; missed: {', '.join(failed) or 'nothing'}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({**content(found), "turns": found.turns, "missed": failed}, indent=2) + "\n")
    return 4 if not found.sound else 1 if failed else 0


if __name__ == "__main__":
    run_with_mounts("tests.proofs.chaos")
    sys.exit(main())
