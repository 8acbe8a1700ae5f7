"""A test double: an issuer on a real Redis server and a temporary store, with a clock and faults on order.

    from issuer.testing import override

    with override() as double:
        double.ids.create("orders")
        issuer.next("orders")                    # 1
        with double.store_away():
            ...

The fixtures `issuer` and `issuer_double` of pytest do the same. They are in the module `pytest_issuer`.
"""

from issuer.testing.double import Double, MovableClock
from issuer.testing.override import override

__all__ = ["Double", "MovableClock", "override"]
