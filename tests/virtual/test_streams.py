"""How much a stream draws ahead, by the time that it takes to use it up."""

from itertools import islice

from tests.virtual.world import World

STEP = 20_000


def test_a_stream_draws_more_ahead_while_it_is_used_up_quickly_and_fewer_again(made: World) -> None:
    with made.connect() as ids:
        ids.create("a", step=STEP, order="trend")
        stream = ids.stream("a")
        numbers = list(islice(stream, 100))
        supply = ids._roster.lines["a"].supply
        assert supply.ahead == 1000
        numbers += islice(stream, STEP)
        assert supply.ahead == STEP // 5  # more would use segments up before the next one is there
        while supply.ahead > 1000:
            made.turns.sleep(2.0)
            numbers += islice(stream, STEP // 5)
            assert len(numbers) < 10 * STEP
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_stream_keeps_to_what_was_said(made: World) -> None:
    with made.connect(lease=50) as ids:
        ids.create("a", step=STEP, order="trend")
        stream = ids.stream("a")
        assert list(islice(stream, 500)) == list(range(1, 501))
        assert {each.high - each.low for each in ids._roster.lines["a"].supply.hand.held} == {50}  # type: ignore[union-attr]
