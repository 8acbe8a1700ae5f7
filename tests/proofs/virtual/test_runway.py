"""The runway: a step is as many numbers as an outage of the store may last, and `inspect` says how long that is."""

import pytest

from issuer.core.supply.local_buffer import threshold
from issuer_persistence.records import DEFAULT_REFILL_AT
from tests.proofs.virtual.test_hanging_store import process
from tests.proofs.virtual.world import World

#: Numbers drawn in a second, and how many seconds of them a step has to last.
SPEED, LONG = 0.1, 600

#: The next segment is fetched when a fifth of the present one is used: up to then the rest is all there is.
STEP = round(SPEED * LONG / (1 - DEFAULT_REFILL_AT))

#: The first extension comes early, and is taken for quick use. With that many reservations it counts for little.
SEEN = 6


@pytest.mark.live
@pytest.mark.colours("blocking")
@pytest.mark.covers("0.20")
def test_a_step_fit_for_ten_minutes_carries_the_tag_through_as_long_an_outage(made: World) -> None:
    """It begins at the worst moment: before the next segment is fetched."""
    with process(made, "strict", STEP) as ids:

        def drawn(last: int) -> float:
            """Draw up to this number at this speed; return the longest that one took."""
            took, number = [0.0], 0
            while number < last:
                call = made.draws(ids, "a").done
                number = call.number
                took.append(call.took)
                made.turns.sleep(1 / SPEED)
            return max(took)

        last = (SEEN - 1) * STEP
        drawn(last - STEP + threshold(0, STEP) - 1)
        assert made.store.top("a") == last
        seen = ids.inspect("a")
        assert seen.rate is not None
        assert seen.rate == pytest.approx(SPEED, rel=0.3)
        assert seen.remaining == STEP - threshold(0, STEP) + 1
        assert seen.runway == pytest.approx(seen.remaining / seen.rate)
        made.store.hang()
        began = made.now
        assert drawn(last) < 0.1
        assert made.now - began >= LONG
        made.store.resume()
        made.turns.until(lambda: made.store.top("a") > last)
        assert ids.next("a") == last + 1
