"""A process of its own that reserves, and returns some of the numbers, until it is killed: sharer.py URL TAG SEED.

It prints "low high" for each segment, high being the last number that it has kept.
"""

import random
import sys

from issuer_persistence.ledger import Purpose
from issuer_persistence.opening import open_store


def main(url: str, tag: str, seed: str) -> None:
    """Reserve and return in a loop, and print what is kept once the store has confirmed it."""
    store, chance = open_store(url), random.Random(seed)
    while True:
        got = store.reserve(tag, chance.choice((None, 7, 100)), purpose=Purpose("sharer"), timeout=60)
        used = got.high
        if chance.random() < 0.3:
            used = chance.randint(got.low, got.high)
            store.hand_back([got], used, timeout=60)
        if used > got.low:
            print(got.low, used, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
