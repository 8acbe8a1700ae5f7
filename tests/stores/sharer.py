"""A process that takes numbers of a shared row until it is killed: sharer.py STORE TAG SEED [REDIS].

It reserves, and returns some of the numbers. With REDIS it draws: an even seed blocking, an odd one asyncio. It prints
"low high" for each range that it keeps, low being the number before the first one.
"""

import random
import sys
from contextlib import suppress

import issuer
from issuer_persistence.ledger import Purpose
from issuer_persistence.opening import open_store
from tests.colours import COLOURS


def reserve(url: str, tag: str, chance: random.Random) -> None:
    """Reserve and return in a loop, and print what is kept once the store has confirmed it."""
    store = open_store(url)
    while True:
        got = store.reserve(tag, chance.choice((None, 7, 100)), purpose=Purpose("sharer"), timeout=60)
        used = got.high
        if chance.random() < 0.3:
            used = chance.randint(got.low, got.high)
            store.hand_back([got], used, timeout=60)
        if used > got.low:
            print(got.low, used, flush=True)


def draw(url: str, tag: str, chance: random.Random, redis: str, colour: str) -> None:
    """Draw in a loop, and print each number once it is here. Servers may be away for a while."""
    with COLOURS[colour](redis=redis, store=url, redis_timeout=1.0) as ids:
        while True:
            with suppress(issuer.RedisUnavailable, issuer.StoreUnavailable):
                if chance.random() < 0.1:
                    numbers = ids.reserve(tag, chance.randint(1, 30))
                    print(numbers[0] - 1, numbers[-1], flush=True)
                for number in ids.take(tag, chance.choice((1, 1, 3, 15))):
                    print(number - 1, number, flush=True)


def main(url: str, tag: str, seed: str, redis: str = "") -> None:
    """Go on until the end."""
    if redis:
        draw(url, tag, random.Random(seed), redis, "asyncio" if int(seed) % 2 else "blocking")
    else:
        reserve(url, tag, random.Random(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
