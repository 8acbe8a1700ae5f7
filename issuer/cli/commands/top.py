"""`issuer top`."""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import click

from issuer import Issuer, terminal
from issuer.board.collector import EVERY, Collector
from issuer.board.file import SORTS, BoardFile
from issuer.board.health import STALE, Health
from issuer.board.rows import STATES, TagRow, rank_of
from issuer.cli.exits import OK, UNREACHABLE, json_option
from issuer.cli.session import Session
from issuer.clock import monotonic, sleep
from issuer.doors.console import charts
from issuer.errors import IssuerError, StoreUnavailable, Unavailable
from issuer.terminal import NARROWEST, Column, ago, plain, shortened
from issuer.threads import finished
from issuer.times import lasting, rounded
from issuer_persistence.records import now_ms

SECTION = "Checks"

#: Longest duration of a request in seconds. The line to a server may be slow.
WITHIN: Final = 3.0
#: Seconds between two pages until all tags were read.
PAUSE: Final = 0.05

HEADINGS: Final = ("TAG", "STATE", "RUNS OUT IN", "", "LEFT", "", "RATE", "ORDER", "STEP", "RESERVED")
#: Headings of numbers, which are aligned to the right.
NUMBERS: Final = ("RUNS OUT IN", "LEFT", "RATE", "STEP")
#: The colours of the levels of the health, and of the ranks of states.
COLORS: Final = {"down": "red", "risk": "yellow", "ok": "green", 0: "red", 1: "yellow", 2: None}
#: The keys for the orders.
KEYS: Final = {"t": "runway", "r": "rate", "l": "last", "n": "name"}
#: What begins and ends the display: the alternative screen without a cursor.
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
#: A line of text, and its colour.
Line = tuple[str, str | None]


@click.command(
    short_help="Watch the tags: which run out first, and why.",
    epilog="""\b
    Examples:
      issuer top
      issuer top --once --sort rate --limit 20
      issuer --server https://numbers.example:8000 top --json | jq .verdict

    \b
    Keys: t, r, l, n sort by time left, rate, last reservation, name; q quits.

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
    how many are used in a second. When none are left, calls for strict tags wait, and calls for trend tags get numbers
    directly from the store. RESERVED is when the last segment was reserved.

    While Redis or the store is unavailable, the last known values are shown. Nothing is drawn or changed. Without a
    terminal, the tags are printed once. At an `issuer serve`, the token needs the scope read.
    """
    issuer = session.connect()
    live = os.name == "posix" and sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    with closing(BoardFile("")) as file:
        board = Board(issuer, file, **shown)
        return _watch(board) if live and not once and not as_json else _print(board, as_json=as_json)


class Board:
    """Reads the tags into the file, and shows the file."""

    def __init__(self, ids: Issuer, file: BoardFile, *, sort: str, state: str | None, search: str, limit: int) -> None:
        self.collector, self._file = Collector(ids.engine, file, logins=False, within=WITHIN), file
        self.patience = ids.engine.config.settings.store_timeout
        self.sort, self._state, self._search, self._limit = sort, state or "", search, limit

    def look(self) -> Health:
        """Read the next page of tags, and return what is known of the servers."""
        self._file.wish("watched")
        finished(self.collector.look)
        return self.health()[0]

    def health(self) -> tuple[Health, int]:
        """Return what is known of the servers, and since when, in ms since 1970. 0: nothing is known yet."""
        fact = self._file.fact("health")
        return (Health(), 0) if fact is None else (Health(**fact.content), fact.at)

    def content(self) -> dict[str, Any]:
        """Return what is shown, for JSON."""
        health, _ = self.health()
        rows, total = self._file.page(self.sort, self._search, self._state, 0, self._limit)
        level, verdict = health.verdict
        tags = [row.content() for row in rows]
        return {"level": level, "verdict": verdict, "health": health.content(), "total": total, "tags": tags}

    def lines(self, columns: int = sys.maxsize, height: int = sys.maxsize) -> list[str]:
        """Return the lines for a terminal of this size, whose last line shows the keys."""
        health, at = self.health()
        head, events = _head(health, at, columns), self._events(min(5, height // 8))
        room = min(self._limit, max(0, height - len(head) - len(events) - 3))
        rows, total = self._file.page(self.sort, self._search, self._state, 0, room)
        counts = terminal.numbered(health.tags, "tag") + ("" if health.complete else " so far, not all were read yet")
        for state, count in sorted(health.states.items(), key=lambda each: rank_of(each[0])):
            counts += f" · {count:,} {state}"
        if self._search or self._state:
            counts += f" · {total:,} chosen"
        lines: list[Line] = [*head, (counts, None), *_table(rows, columns), *events]
        return [click.style(shortened(text, columns), fg=color) for text, color in lines]

    def _events(self, most: int) -> list[Line]:
        """Return the newest events, after an empty line."""
        fact, now = self._file.fact("chronicle"), now_ms()
        found = [] if fact is None else fact.content["happenings"][:most]
        texts = [f"{ago(each['time'], now)}  {each['kind']} {' '.join(each['tags'])}: {each['text']}" for each in found]
        return [(plain(text), None) for text in ["", *texts]] if texts else []

    def frame(self) -> str:
        """Return what fills the terminal."""
        columns, height = shutil.get_terminal_size()
        lines = [*self.lines(columns, height), *[""] * height][: height - 1]
        lines.append(click.style(shortened(f"q quit   t r l n sort: {self.sort}", columns - 1), reverse=True))
        return "\x1b[H" + "\x1b[K\n".join(map(click.unstyle, lines) if terminal.color() is False else lines) + "\x1b[K"


def _head(health: Health, at: int, columns: int) -> list[Line]:
    """Return whether numbers are being issued, and the errors of Redis and the store."""
    level, text = health.verdict if at else ("risk", "No tags were read yet.")
    now = now_ms()
    if at and now - at > STALE:
        level, text = "risk", f"The values are old. They say: {text}"
    told = f"{level.upper()}: {text}{f' Read {ago(at, now)}.' if at else ''}"
    redis, store = (health.redis_code, health.redis_since), (health.store_code, health.store_since)
    for error, (code, since) in {health.redis: redis, health.store: store}.items():
        told += f" {code} since {terminal.moment(since, now)}: {error}." if error else ""
    return [(line, COLORS[level]) for line in terminal.wrapped(plain(told), columns)]


def _table(rows: Sequence[TagRow], columns: int) -> list[Line]:
    """Return the headings and a line for each row. A tag gets at most half of a line."""
    cells = [
        (
            shortened(plain(row.tag), max(NARROWEST, columns // 2)),
            row.state,
            "-" if row.runway is None else lasting(row.runway, 1),
            charts.bar_text(row),
            "-" if row.remaining is None else f"{row.remaining:,}",
            charts.spark_text(row),
            "-" if row.rate is None else rounded(row.rate),
            row.order,
            f"{row.step:,}" if row.kind == "counter" else row.kind,
            ago(row.last, now_ms()) if row.last else "-",
        )
        for row in rows
    ]
    headings = [Column(each, "right" if each in NUMBERS else "left") for each in HEADINGS]
    lines = click.unstyle(terminal.table(headings, cells, None)).split("\n")
    return list(zip(lines, [None, *(COLORS[row.rank] for row in rows)], strict=True))


def _print(board: Board, *, as_json: bool) -> int:
    """Print the tags when all were read. Wait as long as a call would for the store to return more of them."""
    known, end = -1, 0.0
    while not (health := board.look()).complete:
        error = board.collector.store_error
        if health.tags > known:
            known, end = health.tags, monotonic() + board.patience
        elif monotonic() > end or not isinstance(error, Unavailable | None):
            raise error or StoreUnavailable("the store does not return its tags in time")
        else:
            sleep(PAUSE)
    health = board.look()  # at the servers: the tags may have taken a while
    if as_json:
        terminal.show_json(board.content())
    else:
        terminal.show("\n".join(board.lines(terminal.screen_width() or sys.maxsize)))
    return UNREACHABLE if health.redis or health.store else OK


def _watch(board: Board) -> int:
    """Show the tags until somebody presses q."""
    stop = threading.Event()
    reader = threading.Thread(target=_read, args=(board, stop), daemon=True)
    reader.start()
    try:
        with _screen() as keyboard:
            while True:
                click.echo(board.frame().encode(sys.stdout.encoding, errors="replace"), nl=False)
                if select.select([keyboard], [], [], EVERY)[0]:
                    pressed = os.read(keyboard, 1024).decode(errors="ignore")
                    if "q" in pressed or not pressed:  # "": the terminal is gone
                        return OK
                    board.sort = next((KEYS[key] for key in pressed if key in KEYS), board.sort)
    finally:
        stop.set()
        reader.join(3 * EVERY)


def _read(board: Board, stop: threading.Event) -> None:
    """Keep the board up to date until `stop` is set."""
    while not stop.wait(PAUSE if board.collector.hurries else EVERY):
        with suppress(IssuerError, sqlite3.Error):  # older values are shown, with their age
            board.look()


@contextmanager
def _screen() -> Iterator[int]:
    """Yield the keyboard. Meanwhile, warnings are not shown. At the end, the terminal is restored."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    logging.disable()
    suspend = signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell would get the terminal as it is now
    try:
        tty.setcbreak(keyboard)
        click.echo(ENTER, nl=False, color=True)
        yield keyboard
    finally:
        with suppress(OSError, termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
            click.echo(LEAVE, nl=False, color=True)
        signal.signal(signal.SIGTSTP, suspend)
        logging.disable(logging.NOTSET)
