"""Redis in front of a row that Leaf, its Go port or tinyid moves too, by their own statements."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer.gateway.keys import redis_key
from tests.audit import assert_increasing, repeats
from tests.care.test_keeper import Drawer
from tests.programs import run
from tests.stores.benches import TIMEOUT, reserve
from tests.stores.sql.test_shared_row_processes import within
from tests.stores.theirs import FETCHES, Steps, connected
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis

    from issuer import Issuer
    from tests.colours import Connect
    from tests.schemes import Make
    from tests.servers.redis import RedisServer
    from tests.stores.shared_rows import SharedRowBench

pytestmark = [pytest.mark.live, pytest.mark.covers("N.10")]

KEY = redis_key("issuer", "orders")


@dataclass
class Beside:
    """The table of the other program with the tag `orders`, and what each program got from it."""

    bench: SharedRowBench
    ours: list[int] = field(default_factory=list)
    theirs: list[int] = field(default_factory=list)

    def add(self) -> None:
        """Create the tag as the other program's instructions say. For us, its order is trend."""
        self.bench.add("orders", max_id=self.bench.theirs.ahead, step=10)

    def fetch(self, step: int | None = None) -> None:
        """Take numbers as the other program does."""
        self.theirs += self.bench.fetch(step=step)

    def draw(self, ids: Issuer, count: int = 1) -> None:
        for _ in range(count):  # those before an error count, too
            self.ours.append(ids.next("orders"))

    def lower(self) -> None:
        """Lower `max_id`, as a person does."""
        table, key = self.bench.theirs.table, self.bench.theirs.key
        self.bench.run(f"UPDATE {table} SET max_id = 1 WHERE {key} = 'orders'")  # noqa: S608 - ours

    def check(self, ids: Issuer) -> None:
        """Check that no number came twice, and that the ledger knows whose each is."""
        assert repeats([*self.ours, *self.theirs]) == []
        reserve(self.bench.store, 1)  # it enters what the other program has taken at last
        entries = self.bench.store.ledger("orders", newest=100_000, timeout=TIMEOUT)
        for numbers, foreign in ((self.ours, False), (self.theirs, True)):
            known = [each for each in entries if each.low < each.high and (each.reason == "foreign") is foreign]
            held = sorted((each.low, each.high) for each in known)
            assert [each for each in numbers if not within((each - 1, each), held)] == []
        assert ids.verify("orders") == []


@pytest.fixture
def beside(beside: SharedRowBench) -> Beside:
    return Beside(beside)


@pytest.fixture
def opened(connect: Connect, redis_url: str, beside: Beside) -> Make:
    """Connect an issuer to the table, with an empty Redis in front."""
    return lambda **settings: connect(**{"redis": redis_url, "store": beside.bench.url, **settings})


def prefetched(client: redis.Redis) -> bool:
    return bool(client.hexists(KEY, "next_max"))


def test_strict_numbers_rise_over_processes_while_the_other_program_fetches(
    opened: Make, beside: Beside, redis_client: redis.Redis
) -> None:
    with opened() as one, opened() as other:
        one.create("orders", step=10)
        for turn in range(60):
            beside.draw((one, other)[turn % 2])
            if turn % 10 == 1:  # the second number of a segment: the next one is fetched
                beside.fetch()
                until(lambda: prefetched(redis_client))
                beside.fetch()
        assert_increasing(beside.ours)
        beside.check(other)
    assert len(beside.theirs) >= 120


def test_leases_of_a_trend_tag_and_ranges_repeat_nothing_beside_the_other_program(opened: Make, beside: Beside) -> None:
    beside.add()
    with opened(lease=3) as one, opened(lease=7) as other:
        for turn in range(6):
            for ids in (one, other):
                beside.ours += [*ids.take("orders", 7), ids.next("orders")]
                beside.fetch()
            beside.ours += one.reserve("orders", 12 + turn)
    with opened() as late:
        beside.draw(late, 15)
        beside.check(late)


def test_numbers_drawn_without_redis_meanwhile_repeat_nothing(
    connect: Connect, server: RedisServer, beside: Beside
) -> None:
    """Without Redis, processes reserve for themselves, and return the rest to the row, unless it has moved."""
    beside.add()
    common: dict[str, Any] = {"redis": server.url, "store": beside.bench.url, "redis_timeout": 0.5}
    with connect(**common) as one, connect(**common) as other:
        for ids in (one, other):
            beside.draw(ids, 7)
        server.kill()
        for _ in range(3):
            for ids in (one, other):
                beside.draw(ids, 4)
                beside.fetch()
        server.start()
        while not server.client().hexists(KEY, "max"):
            for ids in (one, other):
                beside.draw(ids)
        beside.fetch()
        for ids in (one, other):
            beside.draw(ids, 15)
    beside.fetch()
    with connect(**common) as late:
        beside.draw(late, 15)
        beside.check(late)


def test_a_leaf_that_doubles_its_step_repeats_nothing_and_leaves_our_step(
    connect: Connect, redis_url: str, leaf: SharedRowBench
) -> None:
    leaf.add("orders", step=10)
    beside, steps = Beside(leaf), Steps()
    with connect(redis=redis_url, store=leaf.url) as ids:
        ids.configure("orders", step=10)
        for _ in range(12):
            beside.fetch(steps.next(10))
            beside.draw(ids, 5)
        assert len(beside.theirs) > 10_000
        assert ids.inspect("orders").store.step == 10
        assert leaf.row()[1] == 10
        beside.check(ids)
        sizes = {each.high - each.low for each in ids.segments("orders").entries if each.reason == "load"}
        assert sizes == {10}


def test_tinyid_gets_its_numbers_while_we_reserve_as_fast_as_we_may(
    connect: Connect, redis_url: str, tinyid: SharedRowBench
) -> None:
    tinyid.add("orders", max_id=0, step=1)
    beside = Beside(tinyid)
    with connect(redis=redis_url, store=tinyid.url) as ids, closing(connected(tinyid.server)) as link:
        for _ in range(12):
            beside.draw(ids, 2)  # each has a segment of its own
            for _ in range(5):
                beside.theirs += FETCHES["tinyid"](link, "orders", None)  # raises after three conflicts
        beside.check(ids)
    assert len(beside.theirs) == 60


def test_a_keeper_loads_for_callers_that_only_draw_and_leaves_other_tags_alone(
    opened: Make, beside: Beside, redis_client: redis.Redis
) -> None:
    beside.add()
    beside.bench.add("unused", max_id=beside.bench.theirs.ahead)
    before, drawer = beside.bench.row("unused"), Drawer(redis_client, "orders")
    with opened() as ids:
        ids.keep()
        for count in (25, 25):
            drawer.draw(count)
            beside.fetch()
            redis_client.flushall()
        drawer.draw(25)
        beside.ours += drawer.numbers
        assert_increasing(beside.ours)
        beside.check(ids)
    assert beside.bench.row("unused") == before


def rolled_back(server: RedisServer) -> Callable[[], object]:
    snapshot = server.snapshot()
    return lambda: server.restore(snapshot)


def flushed(server: RedisServer) -> Callable[[], object]:
    return lambda: server.client().flushall()


def replaced(server: RedisServer) -> Callable[[], object]:
    """Put an older hash back within a term, which only `recover` can mend for processes that have not seen more."""
    client = server.client()
    client.copy(KEY, "aside")
    return lambda: client.copy("aside", KEY, replace=True)


@pytest.mark.parametrize("lose", [rolled_back, flushed, replaced])
def test_a_redis_that_loses_its_data_while_the_other_program_goes_on_repeats_nothing(
    lose: Callable[[RedisServer], Callable[[], object]], connect: Connect, server: RedisServer, beside: Beside
) -> None:
    common: dict[str, Any] = {"redis": server.url, "store": beside.bench.url}
    with connect(**common) as one, connect(**common) as other:
        one.create("orders", step=10)
        beside.draw(one, 7)
        beside.fetch()
        loss = lose(server)
        for ids in (one, other):
            beside.draw(ids, 8)
            beside.fetch()
        loss()
        beside.fetch()
        if lose is replaced:
            with pytest.raises(issuer.CorruptState):
                one.next("orders")
            [found] = other.recover("orders")
            assert found.new >= max(*beside.ours, *beside.theirs)
        for ids in (other, one):
            beside.draw(ids, 13)
            beside.fetch()
        assert_increasing(beside.ours)
        until(lambda: prefetched(server.client()))  # else it may come between the two
        [dry], [found] = one.recover("orders", dry_run=True), other.recover("orders")
        assert dry.new == found.new >= max(*beside.ours, *beside.theirs)
        beside.fetch()
        beside.draw(one, 3)
        assert beside.ours[-3] > found.new
        beside.check(one)


@pytest.mark.parametrize("fetched", [False, True])
def test_a_lowered_max_is_refused_with_numbers_left_in_redis(opened: Make, beside: Beside, *, fetched: bool) -> None:
    with opened() as one, opened() as other:
        one.create("orders", step=10)
        beside.draw(one, 25)
        beside.fetch()
        beside.draw(one, 20)  # a reservation among them enters what the other program has taken
        beside.lower()
        if fetched:  # these repeat, but none of ours does
            beside.bench.fetch()
        for ids in (one, other):
            with pytest.raises(issuer.StoreBehind):
                beside.draw(ids, 100)
        if not fetched:
            beside.bench.fetch()
        assert one.inspect("orders").store.halted
        with opened() as third, pytest.raises(issuer.StoreBehind):
            beside.draw(third)
        assert_increasing(beside.ours)
        other.recover("orders")
        for ids in (one, other):
            beside.draw(ids, 15)
            beside.fetch()
        assert_increasing(beside.ours)
        beside.check(other)


def test_restored_tables_are_refused_though_the_other_program_has_gone_on_above_our_numbers(
    opened: Make, beside: Beside
) -> None:
    with opened() as one, opened() as other:
        one.create("orders", step=10)
        beside.draw(one)
        backup = beside.bench.backup()
        beside.draw(one, 30)  # the last one is below a threshold, so no segment is being fetched during the restore
        beside.fetch()
        beside.bench.restore(backup)
        lost = beside.theirs.copy()
        while beside.bench.row()[0] <= max(beside.ours) + 20:  # Leaf knows of nothing
            beside.bench.fetch()
        for ids in (other, one):
            with pytest.raises(issuer.StoreBehind, match="is taken"):
                beside.draw(ids, 100)
            assert ids.inspect("orders").store.halted
        assert_increasing(beside.ours)
        other.recover("orders", at_least=max(lost) + 100)
        for ids in (one, other):
            beside.draw(ids, 15)
            beside.fetch()
        assert_increasing(beside.ours)
        assert repeats([*beside.ours, *beside.theirs]) == []


@pytest.mark.colours("blocking")  # the store decides
def test_a_max_that_was_raised_below_the_other_programs_numbers_is_not_taken_for_a_restored_store(
    opened: Make, beside: Beside
) -> None:
    beside.add()
    with opened() as ids:
        beside.draw(ids)  # below the threshold, so that no segment is fetched
        for _ in range(9):
            beside.fetch()
        ids.configure("orders", start=beside.theirs[40])
        beside.draw(ids, 25)
        beside.check(ids)
        assert min(beside.ours[1:]) > max(beside.theirs)


@pytest.mark.colours("blocking")  # the store decides
def test_a_process_whose_url_lacks_the_layout_is_refused_and_so_is_one_with_another(
    opened: Make, beside: Beside
) -> None:
    """Without the layout, it would reserve above what this program knows, and so what the other one has taken."""
    server, layout = beside.bench.server, beside.bench.layout
    beside.add()
    with opened() as ids:
        beside.draw(ids, 5)
        beside.fetch()
        wrong = f"{server}?layout={'leaf' if layout != 'leaf' else 'tinyid'}"
        for url, problem in ((server, f"the URL must have layout={layout}"), (wrong, "layout|table|column")):
            with opened(store=url) as other:
                for call in (other.recover, other.inspect, other.create, lambda tag, ids=other: ids.reserve(tag, 5)):
                    with pytest.raises(issuer.ConfigurationError, match=problem):
                        call("orders")
        beside.draw(ids, 15)
        beside.check(ids)


def command(redis_url: str, beside: Beside, *arguments: str, code: int = 0) -> str:
    line = ["-m", "issuer", "--redis", redis_url, "--store", beside.bench.url, *arguments]
    done = run(*line, input="")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_after_adopt_a_program_that_still_draws_is_noticed_behind_redis(
    opened: Make, beside: Beside, redis_url: str
) -> None:
    program = beside.bench.theirs.program
    with opened() as one, opened() as other:
        one.create("orders", step=10)
        beside.draw(one, 15)
        beside.fetch()
        adopted = json.loads(command(redis_url, beside, "adopt", "--json"))
        assert adopted == {"tags": 1, "settings": {"orders": {"order": "strict", "step": 10, "ahead": 1}}}
        beside.draw(other, 15)
        assert shared(one) == "ok"
        assert one.inspect("orders").shared_with == ""
        beside.fetch()  # it still runs
        assert shared(one) == "weak"
        for ids in (other, one):
            with pytest.raises(
                issuer.ConfigurationError,
                match=rf"another program has taken.*stop {program}, then run `issuer recover orders",
            ):
                beside.draw(ids, 100)
        with pytest.raises(issuer.ConfigurationError, match="another program has taken"):
            one.configure("orders", start=max(beside.theirs) + 1000)
        assert_increasing(beside.ours)
        one.recover("orders")
        assert shared(one) == "ok"
        for ids in (other, one):
            beside.draw(ids, 15)
        assert_increasing(beside.ours)
        beside.check(one)


@pytest.mark.covers("U.29")
@pytest.mark.colours("blocking")  # the command is the same
def test_adopt_says_the_settings_and_leaves_those_of_a_user(opened: Make, beside: Beside, redis_url: str) -> None:
    beside.add()
    with opened() as ids:
        ids.create("own", step=50, order="trend", lease=0)
        lines = command(redis_url, beside, "adopt").splitlines()
        mode = ids.inspect("orders").store.step_mode
    theirs = {
        "fixed": "step=10, ahead=10", "auto": "step=auto, min_step=10, max_step=1000000, target=600, ahead=1",
    }[mode]  # fmt: skip
    assert mode == ("fixed" if beside.bench.layout == "tinyid" else "auto")
    assert lines[0] == "adopted: 2 tags"
    assert {*lines[1:3]} == {
        f"settings of orders: order=trend, {theirs}, lease=auto",
        "settings of own: order=trend, step=50, ahead=1, lease=0",
    }
    assert "`issuer configure TAG` changes them" in lines[3]


def shared(ids: Issuer) -> str:
    [found] = [each for each in ids.doctor() if each.check == "store-shared"]
    return found.level


@pytest.mark.colours("blocking")
def test_the_commands_say_what_holds(opened: Make, beside: Beside, redis_url: str) -> None:
    beside.add()
    program = beside.bench.theirs.program

    def said(*arguments: str, code: int = 0) -> Any:
        return json.loads(command(redis_url, beside, *arguments, "--json", code=code))

    with opened() as ids:
        ids.configure("orders", ahead=1)
        beside.draw(ids, 1)
        beside.fetch()
        [tag] = said("tags")
        assert (tag["tag"], tag["max"], tag["step"]) == ("orders", 20, 10)
        found = said("inspect", "orders")
        assert found["shared_with"] == program
        assert (found["store"]["max"], found["redis"]["max"], found["remaining"]) == (20, 10, 9)
        assert "1 of 1 tag without a problem" in command(redis_url, beside, "verify")
        [check] = [each for each in said("doctor") if each["check"] == "store-shared"]
        assert (check["level"], program in check["what"], "issuer adopt" in check["remedy"]) == ("advice", True, True)
        assert f"shared       with {program}" in command(redis_url, beside, "inspect", "orders")
        command(redis_url, beside, "halt", "orders", "--yes")
        beside.fetch()  # nothing stops it
        with pytest.raises(issuer.StoreBehind, match="halted"):
            beside.draw(ids, 20)
        assert len(beside.ours) == 10
        assert said("inspect", "orders")["store"]["halted"]
        [found] = said("recover", "orders", "--yes")
        assert (found["old"], found["new"]) == (30, 30)
        beside.draw(ids, 10)
        assert min(beside.ours[10:]) > 30
        beside.check(ids)
        assert "1 of 1 tag without a problem" in command(redis_url, beside, "verify")
        assert "another program on this table" in command(redis_url, beside, "who", "orders", "15")
