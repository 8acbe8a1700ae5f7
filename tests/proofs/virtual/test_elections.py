"""An election is never dropped, whatever becomes of the draw that won it: everybody would wait for it to lapse."""

import pytest

import issuer
from issuer.clock import LONGEST_PAUSE
from issuer.core.supply.extend import extend
from issuer.gateway.commands import script
from issuer.gateway.tag_scripts import Opened
from issuer.settings import GRACE as LAPSES_AFTER
from issuer_persistence.errors import Halted, Unconfirmed
from issuer_persistence.records import Tag
from tests.proofs.virtual.test_outages import GRACE
from tests.proofs.virtual.world import World

NEXT = script("next").sha.encode()

STORE_TIMEOUT = 3.0

#: How long an election stands.
WINDOW = STORE_TIMEOUT + LAPSES_AFTER


@pytest.mark.parametrize("made", ["blocking"], indirect=True)  # tasks share a draw: whoever draws ahead waits for it
def test_a_draw_that_ends_when_its_tag_draws_ahead_by_now_is_a_gap_whose_election_counts(made: World) -> None:
    with made.connect(redis_timeout=5.0) as ids:
        ids.create("a", step=50, order="trend")
        numbers = ids.take("a", 9)
        made.wire.hold_replies(NEXT)
        elected = made.draws(ids, "a")  # the tenth of fifty: the mark
        made.turns.until(lambda: made.wire.held)
        stream = ids.stream("a")
        numbers.append(next(stream))
        assert ids.engine.registry.combiner("a").supply.state.buffer is not None
        made.wire.release()
        numbers.append(elected.number)
        began = made.now
        numbers += [next(stream) for _ in range(100)]
        assert made.now - began < GRACE
        assert sorted(numbers) == [number for number in range(1, 113) if number != 10]


@pytest.mark.parametrize("lacking", [issuer.UnknownTag, issuer.LimitReached])
def test_an_election_that_serves_nobody_is_given_up_at_once(made: World, lacking: type[issuer.IssuerError]) -> None:
    missing = lacking is issuer.UnknownTag
    with made.connect(timeout=1) as ids, made.connect(timeout=1) as others:
        ids.create("a", step=50, limit=500 if missing else 50)
        last = ids.take("a", 30 if missing else 50)[-1]
        if missing:
            others.delete("a")
        with pytest.raises(lacking):
            ids.next("a")
        others.create("a", step=50) if missing else others.configure("a", limit=500)
        drawn = made.draws(others, "a")
        assert drawn.number > last
        assert drawn.took < GRACE


@pytest.mark.covers("4.16")
def test_an_elected_process_that_falls_silent_is_replaced_when_its_election_lapses(made: World) -> None:
    with made.connect(store_timeout=STORE_TIMEOUT) as ids, made.connect(store_timeout=STORE_TIMEOUT) as others:
        ids.create("a", step=50)
        others.take("a", 9)
        made.store.seconds = 1000.0
        assert ids.next("a") == 10  # elected, and its reservation hangs
        made.turns.until(lambda: made.store.begun.count("reserve") == 2)
        made.store.seconds = 0.0
        began = made.now
        assert others.take("a", 40) == list(range(11, 51))
        assert made.now - began < GRACE
        drawn = made.draws(others, "a", 60.0)
        assert drawn.number > 50
        assert WINDOW - 0.2 < drawn.took < WINDOW + LONGEST_PAUSE


def test_a_resignation_that_fails_does_not_hide_why_no_segment_was_loaded() -> None:
    """Somebody has halted the tag and changed its scheme. The record is read again, but the store is away by now."""
    record = Tag(tag="a", max=0, step=50, order="strict", created=0, timestamp=0, version="0" * 24)
    steps = extend(record, "key", store_id="s", seen=0, window=WINDOW, claimant="7")
    next(steps)
    steps.send(Opened("open", due=True, elected=True))
    steps.throw(Halted("a", 0))
    steps.send(Opened("otherscheme", scheme="1.other"))
    with pytest.raises(Halted):
        steps.throw(Unconfirmed("the store is away"))
