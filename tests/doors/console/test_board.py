"""The collector and the file of a board: what they read, keep and show."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.board import collector, outlook
from issuer.board.collector import Collector
from issuer.board.file import SORTS, BoardFile
from issuer.board.rows import STATES, TagRow
from issuer.care.chronicle import Act
from issuer.threads import finished
from issuer_persistence.errors import StoreError
from issuer_persistence.ledger import FOREIGN, LedgerEntry
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import now_ms
from tests.servers.fake import FencedFakeServer

HASH = "issuer:{{{}}}"


class CountedStore(MemoryStore):
    """A memory store that counts the calls of the collector, and can be away."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in {"tags", "get", "ledger", "store_id"}:
            self.calls[name] += 1
        return found


class Board:
    """A board over a fake Redis and a memory store."""

    def __init__(self, folder: Path, server: FencedFakeServer, store: MemoryStore) -> None:
        self.server, self.store = server, store
        self.ids: Issuer = issuer.connect(redis=server.client(), store=store, scheduler=None, timeout=60)
        self.file = BoardFile(folder / "board.sqlite")
        self.collector = Collector(self.ids.engine, self.file)

    def look(self, *, whole: bool = True) -> None:
        """Look once, or until all tags were read."""
        self.file._wished.clear()
        self.file.wish("watched")
        self.collector._due = 0.0
        finished(self.collector.look)
        while whole and self.collector._after is not None:
            self.collector._due = 0.0
            finished(self.collector.look)

    def states(self) -> dict[str, str]:
        return {row.tag: row.state for row in self.file.page("name", "", "", 0, 10_000)[0]}

    def change(self, tag: str, **fields: str) -> None:
        """Change a hash in Redis past all that the issuer would refuse."""
        with self.server.client() as client:
            client.hset(HASH.format(tag), mapping=fields)


@contextmanager
def made(folder: Path, server: FencedFakeServer, store: MemoryStore) -> Iterator[Board]:
    board = Board(folder, server, store)
    with board.ids:
        yield board
    board.file.close()


@pytest.fixture
def board(tmp_path: Path, fake_server: FencedFakeServer, store: MemoryStore) -> Iterator[Board]:
    with made(tmp_path, fake_server, store) as it:
        yield it


class TestStates:
    def test_each_state_is_noticed(self, board: Board) -> None:
        ids = board.ids
        for tag in ("ok", "halted", "behind", "foreign", "torn", "empty"):
            ids.create(tag, step=10)
            ids.next(tag)
        ids.create("unused", step=10)
        ids.create("used up", step=10, limit=20)
        ids.take("used up", 20)
        ids.create("near", step=10, limit=100)
        ids.take("near", 85)
        ids.create("snow", strategy="snowflake")
        ids.halt("halted")
        board.change("behind", max="500")
        board.change("foreign", store="x" * 22)
        board.change("torn", cur="x")
        board.change("empty", cur="10", max="10")
        board.look()
        assert board.states() == {
            "ok": "ok", "halted": "halted", "behind": "behind", "foreign": "foreign", "torn": "damaged",
            "empty": "empty", "unused": "unused", "used up": "used up", "near": "near limit", "snow": "ok",
        }  # fmt: skip
        assert set(board.states().values()) == set(STATES)
        assert board.file.states() == Counter(board.states().values())

    def test_a_segment_that_is_loaded_between_the_two_reads_is_not_behind(
        self, board: Board, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        board.ids.create("orders", step=10)
        board.ids.next("orders")
        read = board.collector._hashes

        async def hashes(tags: Any) -> Any:
            board.ids.take("orders", 25)
            return await read(tags)

        monkeypatch.setattr(board.collector, "_hashes", hashes)
        board.look()
        assert board.states()["orders"] != "behind"
        row = board.file.rows(["orders"])["orders"]
        assert row.max >= (row.next_end or row.end or 0)

    def test_a_tag_that_is_deleted_vanishes(self, board: Board) -> None:
        for tag in ("gone", "stays"):
            board.ids.create(tag)
        board.look()
        board.ids.delete("gone")
        board.look()
        assert board.states() == {"stays": "unused"}

    def test_values_of_redis_stay_while_it_is_away(self, board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
        board.ids.create("orders", step=10)
        board.ids.next("orders")
        board.look()
        before = board.file.rows(["orders"])["orders"]

        async def hashes(_: Any) -> Any:
            return {}

        monkeypatch.setattr(board.collector, "_hashes", hashes)
        board.look()
        after = board.file.rows(["orders"])["orders"]
        assert (after.cur, after.end, after.hashed) == (before.cur, before.end, before.hashed) == (1, 10, before.hashed)
        assert after.read >= before.read

    def test_a_store_that_knows_its_id_but_does_not_answer_is_away(
        self, board: Board, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: object, **__: object) -> None:
            raise StoreError("no answer")

        board.ids.create("orders")
        board.look()
        assert not board.collector._health.store
        monkeypatch.setattr(board.store, "tags", away)
        board.look()
        assert board.collector._health.store_code == "store_unavailable"
        fact = board.file.fact("health")
        assert fact is not None
        assert fact.content["store_code"] == "store_unavailable"


class TestPages:
    def test_tags_of_several_pages_are_all_read_and_sorted(self, board: Board) -> None:
        names = [f"t{number:04}" for number in range(2500)]
        for name in names:
            board.ids.create(name, description=f"Number {name[1:]} of MANY" if name < "t1000" else "")
        board.look()
        found, total = board.file.page("name", "", "", 0, 5000)
        assert ([row.tag for row in found], total) == (names, 2500)
        assert board.collector._health.complete
        rows, total = board.file.page("name", "many", "", 990, 50)
        assert ([row.tag for row in rows], total) == (names[990:1000], 1000)
        assert board.file.page("name", "MANY", "halted", 0, 50) == ([], 0)
        board.ids.delete("t0001")
        board.ids.delete("t2499")
        board.look()
        assert board.file.page("name", "", "", 0, 1)[1] == 2498

    def test_the_most_urgent_tag_is_first(self, tmp_path: Path) -> None:
        rows = [
            TagRow(tag="slow", kind="counter", state="ok", runway=500.0, rate=1.0, last=3, description="A%b_"),
            TagRow(tag="fast", kind="counter", state="ok", runway=5.0, rate=100.0, last=1),
            TagRow(tag="still", kind="counter", state="unused"),
            TagRow(tag="near", kind="counter", state="near limit", runway=900.0, rate=2.0, last=9),
            TagRow(tag="stopped", kind="counter", state="halted", rate=3.0, last=2),
        ]
        file = BoardFile(tmp_path / "board.sqlite")
        file.put(rows, 1)
        for sort, expected in {
            "runway": ["stopped", "near", "fast", "slow", "still"],
            "rate": ["fast", "stopped", "near", "slow", "still"],
            "last": ["near", "slow", "stopped", "fast", "still"],
            "name": ["fast", "near", "slow", "still", "stopped"],
        }.items():
            assert [row.tag for row in file.page(sort, "", "", 0, 9)[0]] == expected
            assert [row.tag for row in file.page(sort, "", "", 1, 2)[0]] == expected[1:3]
        assert set(SORTS) == {"runway", "rate", "last", "name"}
        assert file.shortest() == 5.0
        assert file.active(2) == ["stopped", "near"]
        for sought, found in {"a%B": 1, "%": 1, "_": 1, "S": 4, "'; DROP TABLE rows": 0, "\0": 0}.items():
            assert file.page("name", sought, "", 0, 9)[1] == found, sought
        assert [row.tag for row in file.page("name", "", "halted", 0, 9)[0]] == ["stopped"]
        assert file.rows(["slow", "nope"]) == {"slow": rows[0]}
        file.close()

    def test_the_file_is_for_its_user_alone_and_keeps_nothing_of_an_earlier_server(self, tmp_path: Path) -> None:
        path, other = tmp_path / "board.sqlite", tmp_path / "of-another-user"
        BoardFile.create(path)
        left = BoardFile(path)
        left.put([TagRow(tag="gone", kind="counter", state="ok")], 9)
        left.note("secret", "known")  # the server is killed here
        BoardFile.create(path)
        assert path.stat().st_mode & 0o077 == 0
        board = BoardFile(path)
        assert board.rows(["gone"]) == {}
        assert board.fact("secret") is None
        board.close()
        BoardFile.remove(path)
        other.write_text("as it was")
        path.symlink_to(other)
        BoardFile.create(path)
        assert not path.is_symlink()
        assert other.read_text() == "as it was"
        BoardFile.remove(path)
        assert [*tmp_path.iterdir()] == [other]
        left.close()


class TestEffort:
    def test_a_board_that_nobody_watches_is_read_rarely(
        self, tmp_path: Path, fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [1000.0]
        monkeypatch.setattr(collector, "monotonic", lambda: now[0])
        store = CountedStore()
        with made(tmp_path, fake_server, store) as board:
            board.ids.create("orders")
            finished(board.collector.look)
            store.calls.clear()
            for _ in range(10):
                now[0] += 1
                finished(board.collector.look)
            assert not store.calls
            now[0] += collector.UNWATCHED
            finished(board.collector.look)
            assert store.calls["tags"] > 0
            store.calls.clear()
            board.file.wish("watched")
            now[0] += collector.EVERY
            finished(board.collector.look)
            assert store.calls["tags"] > 0

    def test_the_ledger_of_a_tag_is_read_only_after_a_change(
        self, tmp_path: Path, fake_server: FencedFakeServer
    ) -> None:
        store = CountedStore()
        with made(tmp_path, fake_server, store) as board:
            for tag in ("a", "b", "c"):
                board.ids.create(tag, step=10)
                board.ids.next(tag)
            board.look()
            assert store.calls["ledger"] == 3
            board.look()
            assert store.calls["ledger"] == 3
            board.ids.take("b", 30)
            store.calls.clear()
            board.look()
            assert store.calls["ledger"] == 1

    def test_doctor_takes_at_most_a_tenth_of_the_time_however_long_it_takes(
        self, tmp_path: Path, fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, runs = [1000.0], []
        monkeypatch.setattr(collector, "monotonic", lambda: now[0])

        async def slow(*_: object) -> list[object]:
            runs.append(now[0])
            now[0] += 30
            return []

        monkeypatch.setattr("issuer.care.care.Care.doctor", slow)
        with made(tmp_path, fake_server, MemoryStore()) as board:
            for seconds, count in ((0, 1), (290, 1), (11, 2)):
                now[0] += seconds
                board.file._wished.clear()
                board.file.wish("doctor")
                board.collector.examine()
                with board.collector._examining:  # until it has ended
                    assert len(runs) == count

    def test_a_wish_is_written_once_in_some_seconds(self, tmp_path: Path) -> None:
        file = BoardFile(tmp_path / "board.sqlite")
        assert file.wished("watched") == 0
        file.wish("watched")
        first = file.wished("watched")
        file.wish("watched")
        assert file.wished("watched") == first
        assert abs(now_ms() - first) < 60_000
        file.close()


def entry(low: int, high: int, *, time: int = 0, reason: str = "load", born: str = "x") -> LedgerEntry:
    return LedgerEntry(tag="orders", low=low, high=high, reason=reason, time=time, born=born)


class TestOutlook:
    def test_numbers_without_a_reservation_are_a_gap(self) -> None:
        found = outlook.gaps([entry(30, 40, time=3), entry(0, 20, time=1)], 50, [])
        assert [(each.first, each.last, each.sure, each.time) for each in found] == [
            (41, 50, True, 3),
            (21, 30, True, 1),
        ]
        assert outlook.gaps([entry(10, 20), entry(0, 10)], 20, []) == []

    def test_a_gap_names_the_act_that_made_it(self) -> None:
        act = Act(2, "recover", "orders", "ann", "here", "")
        (gap,) = outlook.gaps([entry(30, 40, time=3), entry(0, 20, time=1)], 40, [act])
        assert "recover" in gap.cause
        assert "ann" in gap.cause

    def test_what_a_foreign_program_has_reserved_is_a_gap(self) -> None:
        (gap,) = outlook.gaps([entry(10, 20), entry(5, 10, reason=FOREIGN), entry(0, 5)], 20, [])
        assert (gap.first, gap.last, gap.sure) == (6, 10, True)
        assert "another program" in gap.cause

    def test_a_hash_that_ended_has_left_at_most_two_segments(self) -> None:
        entries = [entry(40, 50, born="new"), *(entry(low, low + 10, born="old") for low in (30, 20, 10, 0))]
        (gap,) = outlook.gaps(entries, 50, [])
        assert (gap.first, gap.last, gap.sure) == (21, 40, False)

    def test_an_entry_that_was_handed_back_is_no_reservation(self) -> None:
        assert outlook.gaps([entry(10, 20), entry(10, 10), entry(0, 10)], 20, []) == []

    def test_rates_are_those_between_two_reservations(self) -> None:
        entries = [entry(20, 30, time=4000), entry(10, 20, time=2000), entry(0, 10, time=1000)]
        assert outlook.rates(entries, 10) == [(1000, 2000, 10.0), (2000, 4000, 5.0)]
        assert outlook.rates(entries, 1) == [(1000, 4000, 20 * 1000 / 3000)]
        assert outlook.rates(entries[:1], 10) == []
        assert outlook.rates([], 10) == []

    def test_reservations_of_one_moment_are_no_peak(self) -> None:
        moments = {30: 9000, 20: 1000, 10: 1000, 0: 1000}
        entries = [entry(low, low + 10, time=time) for low, time in moments.items()]
        assert outlook.rates(entries, 100) == [(1000, 9000, 30 * 1000 / 8000)]

    def test_an_adapted_step_grows_to_what_the_rate_needs(self, board: Board) -> None:
        board.ids.create("fixed", step=100)
        board.ids.create("auto", target=600)
        for tag, rate, step in (("fixed", 10.0, 100), ("auto", 0.1, 1000), ("auto", 1000.0, 512_000)):
            seen = board.ids.inspect(tag)
            hour = outlook.next_hour(seen, rate, 600, 0, 2**63 - 1)
            assert (hour.numbers, hour.step) == (round(rate * 3600), step)
            assert hour.segments == hour.numbers / step
            assert hour.left == pytest.approx(1)
        assert outlook.next_hour(board.ids.inspect("fixed"), 10.0, 600, 10, 20).left == 0
