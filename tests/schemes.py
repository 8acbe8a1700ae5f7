"""What tests of schemes share: keys for scrambling, and issuers that each stand for a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from issuer import Issuer
from tests.colours import Connect

KEYS = {"k1": b"0123456789abcdef", "k2": b"fedcba9876543210"}

Make = Callable[..., Issuer]


@contextmanager
def processes(connect: Connect, **common: object) -> Iterator[Make]:
    """Make issuers with these settings, and those that each is made with; all are closed at the end."""
    with ExitStack() as ends:
        yield lambda **settings: ends.enter_context(connect(**{"keys": KEYS, **common, **settings}))
