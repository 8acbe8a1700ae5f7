"""Seeds of what is random in the tests: fixed in `make test`, fresh in `make soak`."""

import os

SEED = "ISSUER_TEST_SEED"


def chosen() -> int:
    """Return the seed that `make soak` has chosen and printed; 0 in any other run."""
    return int(os.environ.get(SEED) or 0)


def seeded(fixed: int) -> int:
    """Return `fixed`, or another seed in each run of `make soak`."""
    return fixed + chosen()
