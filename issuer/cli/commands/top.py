"""`issuer top`."""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import click

from issuer import Issuer, terminal
from issuer.board.collector import EVERY, Collector
from issuer.board.file import SORTS, BoardFile
from issuer.board.health import STALE, Health
from issuer.board.outlook import rates
from issuer.board.rows import STATES, TagRow, rank_of
from issuer.cli.exits import OK, UNREACHABLE, json_option
from issuer.cli.session import Session
from issuer.clock import monotonic, sleep
from issuer.doors.console.charts import bar
from issuer.errors import IssuerError, StoreUnavailable, Unavailable
from issuer.terminal import GAP, NARROWEST, Column, ago, plain, shortened, width
from issuer.threads import finished
from issuer.times import lasting, rounded
from issuer_persistence.records import now_ms

SECTION = "Checks"

log = logging.getLogger("issuer")

#: Seconds between two looks at the keys and at the size of the terminal.
TICK: Final = 0.5
#: Longest duration of a request in seconds. The line to a server may be slow.
WITHIN: Final = 3.0
#: Seconds between two messages about the tags that were read so far.
TOLD: Final = 5.0
#: Milliseconds for which events are shown: one day.
DAY: Final = 86_400_000

#: Columns of the table. A narrow terminal shows only the first ones.
COLUMNS: Final = (
    Column("TAG"), Column("STATE"), Column(""), Column("LEFT", "right"), Column(""), Column("RATE", "right"),
    Column("RUNS OUT IN", "right"), Column("THEN"), Column("ORDER"), Column("STEP", "right"), Column("RESERVED"),
)  # fmt: skip
#: Maximum width of the first column on a terminal, in cells.
TAG_MOST: Final = 60
#: Cells of the bar and of the sparkline, and the characters of both.
BAR, SPARK = 6, 8
EIGHTHS, HEIGHTS = " ▏▎▍▌▋▊▉", "▁▂▃▄▅▆▇█"

#: What calls do if a tag runs out, by its order.
THEN: Final = {"strict": "wait", "trend": "direct"}
#: The hue of the first line, by the level of the health.
HUES: Final = {"down": "red", "risk": "yellow", "ok": "green"}
#: The hue of a row, by the rank of its state.
ROW_HUES: Final = ("red", "yellow", None)
#: The keys for the orders.
KEYS: Final = {"t": "runway", "r": "rate", "l": "last", "n": "name"}
ARROWS: Final = {"\x1b[C": 1, "\x1b[B": 1, "\x1b[D": -1, "\x1b[A": -1}
#: What the press of a key sends: an escape sequence, or one character.
PRESSED: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
#: What begins and ends a frame of the terminal: the alternative screen without a cursor.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"

#: A line of text, and its style for `click.style`.
Line = tuple[str, dict[str, Any]]


@click.command(
    short_help="Watch the tags: which run out first, and why.",
    epilog="""\b
    Examples:
      issuer top
      issuer top --once --sort rate --limit 20
      issuer --server https://numbers.example:8000 top --json | jq .verdict

    \b
    Keys: t, r, l, n and the arrows sort by time left, rate, last reservation
    and name; / searches; space pauses; q quits.

    \b
    Exit codes: 0 the tags were shown. With --once also 5: Redis or the store
    is unavailable.
    """,
)
@click.option("--once", is_flag=True, help="Read all tags, print them once, and end.")
@click.option("--sort", type=click.Choice([*SORTS]), default="runway", help="Order of the tags. Default: runway.")
@click.option("--state", type=click.Choice([*STATES]), help="Show only tags in this state.")
@click.option("--search", metavar="TEXT", default="", help="Show only tags with this text in name or description.")
@click.option("--limit", metavar="N", type=click.IntRange(1), default=100, help="Most tags to show. Default: 100.")
@json_option("As --once, but print JSON: the health, and the tags.")
@click.pass_obj
def top(session: Session, /, *, once: bool, as_json: bool, **shown: Any) -> int:
    """Watch the tags. The tag that runs out first is at the top.

    The first line shows whether numbers are being issued now, and why not. LEFT is how many numbers Redis has. RATE is
    how many are used in a second. THEN is what calls do when none are left: those for strict tags wait, those for trend
    tags get numbers directly from the store. RESERVED is when the last segment was reserved.

    While Redis or the store is unavailable, the last known values are shown. Nothing is drawn or changed. Without a
    terminal, the tags are printed once. At an `issuer serve`, the token needs the scopes read and reserve.
    """
    issuer = session.connect()
    live = os.name == "posix" and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    try:
        with closing(BoardFile("")) as file:
            board = Board(issuer, file, **shown)
            return _watch(board) if live and not once and not as_json else _print(board, as_json=as_json)
    except sqlite3.Error as error:
        raise click.ClickException(f"the temporary file of the board: {error}") from error


class Board:
    """Reads the tags into the file, and shows the file."""

    def __init__(
        self, issuer: Issuer, file: BoardFile, *, sort: str, state: str | None, search: str, limit: int
    ) -> None:
        self.collector, self._file = Collector(issuer.engine, file, logins=False, within=WITHIN), file
        self._is_client = issuer.engine.config.relay is not None
        #: Longest wait for the store, in seconds.
        self.patience = issuer.engine.config.settings.store_timeout
        self._sort, self._state, self._search, self._limit = sort, state or "", search, limit
        self.paused = self._typing = self.ended = False

    def look(self) -> Health:
        """Read the next page of tags, and return what is known of the servers."""
        self._file.wish("watched")
        finished(self.collector.look)
        return self._health()[0]

    def _health(self) -> tuple[Health, int]:
        """Return what is known of the servers, and its age in ms. -1: nothing is known yet."""
        fact = self._file.fact("health")
        return (Health(), -1) if fact is None else (Health(**fact.content), now_ms() - fact.at)

    def _page(self, most: int) -> tuple[list[TagRow], int]:
        return self._file.page(self._sort, self._search, self._state, 0, min(most, self._limit))

    def content(self) -> dict[str, Any]:
        """Return what is shown, for JSON."""
        health, (rows, total) = self._health()[0], self._page(self._limit)
        level, verdict = health.verdict
        tags = [row.content() for row in rows]
        return {"level": level, "verdict": verdict, "health": health.content(), "total": total, "tags": tags}

    def lines(self, columns: int | None, height: int | None = None) -> list[str]:
        """Return the lines for a terminal of this size, which has one more line. None: the size does not matter."""
        health, age = self._health()
        head, foot = self._head(health, age, columns), self._foot(3 if height is None else height // 8)
        room = self._limit if height is None else max(0, height - len(head) - len(foot) - 3)
        rows, total = self._page(room)
        states = sorted(health.states.items(), key=lambda each: rank_of(each[0]))
        counts = terminal.numbered(health.tags, "tag") + ("" if health.complete else " so far, not all were read yet")
        counts += "".join(f" · {count:,} {state}" for state, count in states)
        if self._search or self._state:
            chosen = f"; {total:,}", self._state, self._search and f"with {self._search!r}"
            counts += " ".join(filter(None, chosen))
        lines: list[Line] = [*head, (plain(counts), {}), *_table(rows, columns, now_ms()), *foot]
        return [click.style(text if columns is None else shortened(text, columns), **how) for text, how in lines]

    def _head(self, health: Health, age: int, columns: int | None) -> list[Line]:
        level, text = health.verdict if age >= 0 else ("risk", "No tags were read yet.")
        if age > STALE and not self.paused:
            level, text = "risk", f"The values are old. They say: {text}"
        now = now_ms()
        since = {health.redis_code: health.redis_since, health.store_code: health.store_since}
        codes = [f" {code} since {terminal.moment(at, now)}." for code, at in since.items() if code]
        told = f"{level.upper()}: {text}{''.join(codes)}{f' Read {ago(now - age, now)}.' if age >= 0 else ''}"
        errors: list[Line] = [(f"  {plain(each)}", {}) for each in (health.redis, health.store) if each not in text]
        return [
            *((line, {"fg": HUES[level], "bold": True}) for line in terminal.wrapped(plain(told), columns)),
            *errors,
        ]

    def _foot(self, most: int) -> list[Line]:
        """Return the newest events of the last day."""
        fact, now = self._file.fact("chronicle"), now_ms()
        told = [] if fact is None else [each for each in fact.content["happenings"] if each["time"] > now - DAY]
        texts = [f"{ago(each['time'], now)}  {each['kind']} {' '.join(each['tags'])}: {each['text']}" for each in told]
        if self._is_client:
            texts = ["Events and waiting callers are not known here. See the console of the server."]
        return [(plain(text), {"dim": True}) for text in ["", *texts[:most]]] if texts else []

    def press(self, key: str) -> None:
        """Do what the key is for. Other keys do nothing."""
        sorts = [*KEYS.values()]
        if self._typing:
            self._typing = key not in {"\r", "\n", "\x1b"}
            if key in {"\x7f", "\b", "\x1b"}:
                self._search = self._search[:-1] if self._typing else ""
            elif key.isprintable():
                self._search += key
        elif key in ARROWS:
            self._sort = sorts[(sorts.index(self._sort) + ARROWS[key]) % len(sorts)]
        else:
            self._sort = KEYS.get(key, self._sort)
            self.ended, self._typing = key == "q", key == "/"
            self.paused ^= key == " "

    def frame(self) -> str:
        """Return what fills the terminal."""
        columns, height = shutil.get_terminal_size()
        keys = f"q quit   t r l n sort: {self._sort}   / search: {self._search or 'all'}   space "
        keys += "PAUSED" if self.paused else "pause"
        if self._typing:
            keys = f"search: {self._search}_   Enter: search   Esc: all"
        lines = [*self.lines(columns, height), *[""] * height][: height - 1]
        lines.append(click.style(shortened(plain(keys), columns - 1), reverse=True))
        return "\x1b[H" + "\x1b[K\n".join(map(click.unstyle, lines) if terminal.color() is False else lines) + "\x1b[K"


def _table(rows: Sequence[TagRow], room: int | None, now: int) -> list[Line]:
    """Return the headings and a line for each row, with as many columns as fit into `room` cells."""
    cells = [[plain(each) for each in _cells(row, now)] for row in rows]
    widths = [max(map(width, each)) for each in zip([column.heading for column in COLUMNS], *cells, strict=True)]
    count, least = len(COLUMNS), min(widths[0], NARROWEST)
    while room is not None and least + sum(each + GAP for each in widths[1:count]) > room and count > 1:
        count -= 1
    most = widths[0] if room is None else max(least, min(TAG_MOST, room - sum(each + GAP for each in widths[1:count])))
    lines = terminal.table(COLUMNS[:count], [[shortened(tag, most), *rest[: count - 1]] for tag, *rest in cells], None)
    styles: list[dict[str, Any]] = [{"bold": True}, *({"fg": ROW_HUES[row.rank]} for row in rows)]
    return list(zip(click.unstyle(lines).split("\n"), styles, strict=True))


def _cells(row: TagRow, now: int) -> tuple[str, ...]:
    counts, auto = row.kind == "counter", " auto" if row.step_mode == "auto" else ""
    return (
        row.tag, row.state,
        _bar(row), "-" if row.remaining is None else f"{row.remaining:,}",
        _sparkline(rates(row.tail, SPARK)), "-" if row.rate is None else rounded(row.rate),
        "-" if row.runway is None else lasting(row.runway, 1),
        THEN.get(row.order, "") if counts else "",
        row.order, f"{row.step:,}{auto}" if counts else row.kind, ago(row.last, now) if row.last else "-",
    )  # fmt: skip


def _bar(row: TagRow) -> str:
    """Return a bar: the share of the numbers in Redis that are left. "" if Redis has no segment."""
    found = bar(row)
    full, part = divmod(0 if found is None else round(found.share * BAR * len(EIGHTHS) / 100), len(EIGHTHS))
    return ("█" * full + EIGHTHS[part]).rstrip()


def _sparkline(found: Sequence[tuple[int, int, float]]) -> str:
    """Return the rate over time as bars, scaled to the highest one. "" if there are too few rates."""
    if len(found) < 2:  # noqa: PLR2004 - one bar is no line
        return ""
    begin, end, most = found[0][0], found[-1][1], max(rate for _, _, rate in found) or 1.0
    times = [begin + (at + 0.5) * (end - begin) / SPARK for at in range(SPARK)]
    shown = [next(rate for _, until, rate in found if time <= until) for time in times]
    return "".join(HEIGHTS[round(rate / most * (len(HEIGHTS) - 1))] for rate in shown)


def _print(board: Board, *, as_json: bool) -> int:
    """Print the tags when all were read. While the store is unavailable, wait for it as long as a call would."""
    health, end, tell = board.look(), monotonic() + board.patience, monotonic() + TOLD
    while not health.complete:
        error = board.collector.store_error
        if error is not None and (monotonic() > end or not isinstance(error, Unavailable)):
            raise error
        known, health = health.tags, board.look()
        if health.tags > known:
            end = monotonic() + board.patience
        elif monotonic() > end + board.patience:
            raise StoreUnavailable("the store does not return its tags in time")
        else:
            sleep(TICK)
        if monotonic() > tell:
            terminal.say(f"{terminal.numbered(health.tags, 'tag')} read so far")
            tell = monotonic() + TOLD
    health = board.look()  # at the servers: the tags may have taken a while
    if as_json:
        terminal.show_json(board.content())
    else:
        terminal.show("\n".join(board.lines(terminal.screen_width())))
    return UNREACHABLE if health.redis or health.store else OK


def _watch(board: Board) -> int:
    """Show the tags until somebody presses q."""
    stop = threading.Event()
    reader = threading.Thread(target=_read, args=(board, stop), daemon=True)
    reader.start()
    try:
        with _screen() as (keyboard, write):
            before = ""
            while not board.ended:
                if (frame := board.frame()) != before:
                    write(before := frame)
                if select.select([keyboard], [], [], TICK)[0]:
                    pressed = os.read(keyboard, 1024)
                    board.ended = not pressed  # the terminal is gone
                    for key in PRESSED.findall(pressed.decode(errors="ignore")):
                        board.press(key)
    finally:
        stop.set()
        reader.join(3 * EVERY)
    return OK


def _read(board: Board, stop: threading.Event) -> None:
    """Keep the board up to date until `stop` is set. Until all tags were read, spend half of the time on it."""
    pause = 0.0
    while not stop.wait(pause):
        pause, began = EVERY, monotonic()
        try:
            if not board.paused and not (health := board.look()).complete and not health.store:
                pause = monotonic() - began
        except (IssuerError, sqlite3.Error) as error:
            log.debug("top shows older values: %s", error)


@contextmanager
def _screen() -> Iterator[tuple[int, Callable[[str], None]]]:
    """Yield the keyboard, and a function that writes to the terminal. The terminal is restored at the end.

    Warnings are not shown meanwhile: they would stand in the table.
    """
    import termios
    import tty

    keyboard, screen, coding = sys.stdin.fileno(), sys.stdout.fileno(), sys.stdout.encoding
    before = termios.tcgetattr(keyboard)

    def write(text: str) -> None:
        data = text.encode(coding, errors="replace")
        while data:
            data = data[os.write(screen, data) :]

    logging.disable()
    suspend = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would get the terminal as it is now
    try:
        tty.setcbreak(keyboard)
        write(ENTER)
        yield keyboard, write
    finally:
        with suppress(OSError, termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
            write(LEAVE)
        signal.signal(signal.SIGTSTP, suspend)
        logging.disable(logging.NOTSET)
