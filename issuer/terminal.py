"""Text for the terminal: widths, tables, times, JSON. Only `say` and the functions `show...` write text."""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import click

from issuer.times import in_utc, lasting, utc

#: Minimum width of a flexible column, in cells.
NARROWEST = 10
#: Blanks between two columns.
GAP = 2
#: Maximum number of names of tags that a message lists.
LISTED = 20


def color() -> bool | None:
    """Return False if NO_COLOR is set or the terminal is dumb.

    Otherwise return None. click then uses colours if it writes to a terminal.
    """
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def say(message: str = "") -> None:
    """Write a message to stderr. stdout is for data only."""
    click.echo(message, err=True, color=color())


def show(data: str) -> None:
    """Write data to stdout."""
    click.echo(data, color=color())


def show_json(data: Any) -> None:
    """Write data as JSON to stdout. Non-ASCII letters are not escaped if stdout accepts UTF-8."""
    click.echo(_json(data))


def show_json_list(items: Iterable[Any]) -> None:
    """Write a list as JSON to stdout, as `show_json` does, but each item as soon as it is there."""
    before = "[\n  "
    for item in items:
        click.echo(before + _json(item).replace("\n", "\n  "), nl=False)  # JSON strings contain no line breaks
        before = ",\n  "
    click.echo("[]" if before.startswith("[") else "\n]")


def _json(data: Any) -> str:
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(data, indent=2, ensure_ascii=not utf8)


def show_json_line(data: Any) -> None:
    """Write data as one line of JSON to stdout."""
    click.echo(json.dumps(data))


# ---------------------------------------------------------------------- widths


def width(text: str) -> int:
    """Return how many terminal cells the text takes: a wide letter takes 2, a combining one 0."""
    return sum(_cells(letter) for letter in text)


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def plain(text: str) -> str:
    """Return the text, in which letters that are invisible or could move the cursor are escaped."""
    return "".join(
        letter if letter.isprintable() or (_cells(letter) == 0 and unicodedata.category(letter) != "Cf") else
        letter.encode("unicode_escape").decode()
        for letter in text
    )  # fmt: skip


def shortened(text: str, cells: int) -> str:
    """Return the text. If the text needs more than `cells` terminal cells, cut it and add `…`."""
    return text if width(text) <= cells else _fitting(text, cells - 1) + "…"


def numbered(count: int, name: str) -> str:
    """Return a count with its unit: "1 tag", "1,000 tags"."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return the first 20 names as text, separated by commas. If there are more, "..." follows."""
    return ", ".join(map(plain, names[:LISTED])) + (", ..." if len(names) > LISTED else "")


def wrapped(text: str, cells: int | None) -> list[str]:
    """Return the text as lines of at most `cells` terminal cells, broken between words.

    A word that is longer than a line gets a line of its own and is not broken. If `cells` is None, return one line.
    """
    if cells is None:
        return [text]
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if width(longer) <= cells or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def folded(text: str, cells: int | None) -> list[str]:
    """Return the text as lines of at most `cells` terminal cells, broken between words.

    A word that is longer than a line is broken. If `cells` is None, return one line.
    """
    if cells is None or width(text) <= cells:
        return [text]
    lines = []
    for line in wrapped(text, cells):
        rest = line
        while width(rest) > cells:
            kept = _fitting(rest, cells) or rest[:1]
            lines.append(kept)
            rest = rest[len(kept) :]
        lines.append(rest)
    return lines


def _fitting(text: str, cells: int) -> str:
    room = cells
    for at, letter in enumerate(text):
        room -= _cells(letter)
        if room < 0:
            return text[:at]
    return text


def screen_width() -> int | None:
    """Return the width of the terminal in cells. If stdout is no terminal, return None: lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# ---------------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. If the table is too wide, long texts in a flexible column continue on the next line."""

    heading: str
    align: Literal["left", "right"] = "left"
    flexible: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], room: int | None) -> str:
    """Return a table as text: the headings and the rows, aligned.

    If the table is wider than `room` terminal cells, flexible columns become narrower. If that is not enough, each row
    becomes a block with one line for each column. If `room` is None, lines may have any length.
    """
    return PagedTable(columns, room).page(rows)


@dataclass(slots=True)
class PagedTable:
    """A table that is written by pages. If a page needs wider columns than the pages before, it has wider columns.

    `columns` and `room` are the parameters of `table`.
    """

    columns: Sequence[Column]
    room: int | None
    _widths: list[int] = field(default_factory=list, init=False)
    _has_headings: bool = field(default=False, init=False)

    def page(self, rows: Sequence[Sequence[object]]) -> str:
        """Return the next rows as text, aligned. The first page begins with the headings."""
        columns, room = self.columns, self.room
        least = self._widths or [width(column.heading) for column in columns]
        cells = [[plain(str(cell)) for cell in row] for row in rows]
        self._widths = widths = [max([size, *(width(row[at]) for row in cells)]) for at, size in enumerate(least)]
        if room is not None and not _squeezed(columns, widths, room):
            return "\n".join(line for row in cells for line in _block(columns, row, room))
        lines = [_line(line, widths, columns, bold=False) for row in cells for line in _lines(row, widths, columns)]
        if not self._has_headings:
            lines.insert(0, _line([column.heading for column in columns], widths, columns, bold=True))
            self._has_headings = True
        return "\n".join(lines)


def _lines(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of a row. There are several if a text in a flexible column continues on the next line."""
    split = [
        folded(cell, size) if column.flexible else [cell]
        for cell, size, column in zip(row, widths, columns, strict=True)
    ]
    yield from zip_longest(*split, fillvalue="")


def _block(columns: Sequence[Column], row: Sequence[str], room: int) -> Iterator[str]:
    """Yield a row as a block: the text of the first column, then a line for each further column with its heading."""
    yield from (click.style(line, bold=True) for line in folded(row[0], room))
    lead = max(width(column.heading) for column in columns[1:]) + 2 * GAP
    for column, cell in zip(columns[1:], row[1:], strict=True):
        for at, line in enumerate(folded(cell, max(room - lead, NARROWEST)) if cell else []):
            yield f"{'' if at else ' ' * GAP + column.heading:{lead}}{line}"


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column], *, bold: bool) -> str:
    padded = []
    for cell, size, column in zip(cells, widths, columns, strict=True):
        short = shortened(cell, size)
        blanks = " " * (size - width(short))
        shown = click.style(short, bold=True) if bold else short
        padded.append(blanks + shown if column.align == "right" else shown + blanks)
    return (" " * GAP).join(padded).rstrip()


def _squeezed(columns: Sequence[Column], widths: list[int], room: int) -> bool:
    """Narrow flexible columns in `widths`, the widest first, the first column last. Return whether a row fits."""
    while sum(widths) + GAP * (len(widths) - 1) > room:
        loose = [at for at, column in enumerate(columns) if column.flexible and widths[at] > NARROWEST]
        if not loose:
            return False
        widths[max(loose, key=lambda at: (at > 0, widths[at]))] -= 1
    return True


# ---------------------------------------------------------------------- times


def moment(milliseconds: int, now: int) -> str:
    """Return a time (ms since 1970) as ISO time in UTC, and how long ago it was. 0 means never."""
    return ago(0, now) if not milliseconds else f"{utc(milliseconds)}, {ago(milliseconds, now)}"


def stamp_utc(milliseconds: int) -> str:
    """Return a time (ms since 1970) as ISO text in UTC. For midnight, return only the date."""
    if in_utc(milliseconds) is None:
        return "after the year 9999"
    return utc(milliseconds).removesuffix("T00:00:00Z")


def stamp_ms(milliseconds: int) -> str:
    """Return a time (ms since 1970) as ISO time in UTC with milliseconds."""
    moment = in_utc(milliseconds)
    return str(milliseconds) if moment is None else f"{utc(milliseconds)[:-1]}.{milliseconds % 1000:03}Z"


def ago(milliseconds: int, now: int) -> str:
    """Return how long ago a time was, as text. Both times are in ms since 1970.

    0 means never: nobody has changed a tag here that only another program has. The time may be in the future, because
    the clocks of two hosts can differ.
    """
    seconds = (now - milliseconds) / 1000
    if not milliseconds:
        return "never"
    if abs(seconds) < 1:
        return "just now"
    return f"{lasting(seconds, 1)} ago" if seconds > 0 else f"in {lasting(-seconds, 1)}"
