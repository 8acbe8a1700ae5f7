"""A process that draws from a shared row until it is killed: shared_drawer.py REDIS STORE TAG SEED.

An even seed makes it blocking, an odd one asyncio. It prints "low high" for each number or range, low being the number
before the first one.
"""

import random
import sys
from contextlib import suppress

import issuer
from tests.colours import COLOURS


def main(redis: str, store: str, tag: str, seed: str) -> None:
    """Draw in a loop, and print each number once it is here. Servers may be away for a while."""
    chance = random.Random(seed)
    with COLOURS["asyncio" if int(seed) % 2 else "blocking"](redis=redis, store=store, redis_timeout=1.0) as ids:
        while True:
            with suppress(issuer.RedisUnavailable, issuer.StoreUnavailable):
                if chance.random() < 0.1:
                    numbers = ids.reserve(tag, chance.randint(1, 30))
                    print(numbers[0] - 1, numbers[-1], flush=True)
                for number in ids.take(tag, chance.choice((1, 1, 3, 15))):
                    print(number - 1, number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
