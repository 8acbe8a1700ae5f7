"""The figures of a simulation: python -m tests.proofs.simulation [--tags N] [--days N] [--seed N] [--loss]"""

import argparse
import time

from tests.proofs.simulation.days import HEAD, simulated


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.simulation", description=__doc__)
    parser.add_argument("--tags", type=int, default=100)
    parser.add_argument("--days", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--loss", action="store_true", help="Redis loses its data once")
    given = parser.parse_args()
    began = time.monotonic()
    with simulated(given.tags, given.days, given.seed, loss=given.loss) as (fleet, found):
        print(HEAD)
        for name, figures in sorted(found.items()):
            print(figures.line(name, given.days * 24))
        print({kind.__name__: many for kind, many in fleet.events.items()}, fleet.late[:10])
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
