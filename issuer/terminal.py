"""Text for the terminal: widths, tables, times, JSON. No I/O but `say` and `show`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import click

from issuer.times import in_utc, lasting, utc

#: Narrowest that a flexible column becomes, in cells.
NARROWEST = 10
#: Blanks between two columns.
GAP = 2


def color() -> bool | None:
    """Whether to write colours: False under NO_COLOR or on a dumb terminal, else None: where the stream is a tty."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def say(message: str = "") -> None:
    """Write talk: to stderr, so that stdout holds nothing but data."""
    click.echo(message, err=True, color=color())


def show(data: str) -> None:
    """Write data: to stdout."""
    click.echo(data, color=color())


def show_json(data: Any) -> None:
    """Write data as JSON to stdout. Letters beyond ASCII stay readable where stdout can take them."""
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    click.echo(json.dumps(data, indent=2, ensure_ascii=not utf8))


# ---------------------------------------------------------------------- widths


def width(text: str) -> int:
    """Return how many terminal cells the text takes: 2 for a wide letter, 0 for a combining one."""
    return sum(_cells(letter) for letter in text)


def _cells(letter: str) -> int:
    if unicodedata.category(letter) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in {"W", "F"} else 1


def plain(text: str) -> str:
    """Return the text with all that could move the cursor or hide something made visible."""
    return "".join(
        letter if letter.isprintable() or (_cells(letter) == 0 and unicodedata.category(letter) != "Cf") else
        letter.encode("unicode_escape").decode()
        for letter in text
    )  # fmt: skip


def shortened(text: str, cells: int) -> str:
    """Return the text, cut and ended with `…` if it takes more cells than that."""
    return text if width(text) <= cells else _fitting(text, cells - 1) + "…"


def numbered(count: int, name: str) -> str:
    """Return a count with its unit: "1 tag", "1,000 tags"."""
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def wrapped(text: str, cells: int | None) -> list[str]:
    """Return the text in lines of at most `cells` cells, broken between words; a longer word has a line for itself."""
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
    """Return the text in lines of at most `cells` cells; broken within a word only if that alone is longer."""
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
    """Return as much of the text's beginning as fits."""
    room = cells
    for at, letter in enumerate(text):
        room -= _cells(letter)
        if room < 0:
            return text[:at]
    return text


def screen_width() -> int | None:
    """Return the columns of the terminal; None if stdout is none: then nothing is shortened or wrapped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# ---------------------------------------------------------------------- tables


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. A long cell of a flexible one continues on the next line, so that the table fits."""

    heading: str
    align: Literal["left", "right"] = "left"
    flexible: bool = False


def table(columns: Sequence[Column], rows: Sequence[Sequence[object]], room: int | None) -> str:
    """Return the rows under their headings, aligned, in lines of at most `room` cells.

    Flexible columns become narrower to fit. If that isn't enough, each row is a block with a line for each cell.
    """
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    widths = [
        max(width(column.heading), *(width(row[at]) for row in cells)) if cells else width(column.heading)
        for at, column in enumerate(columns)
    ]
    if room is not None and not _squeezed(columns, widths, room):
        return "\n".join(line for row in cells for line in _block(columns, row, room))
    lines = [[column.heading for column in columns], *(line for row in cells for line in _lines(row, widths, columns))]
    return "\n".join(_line(line, widths, columns, bold=at == 0) for at, line in enumerate(lines))


def _lines(row: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """Yield the lines that a row takes: several if a cell wraps."""
    split = [
        folded(cell, size) if column.flexible else [cell]
        for cell, size, column in zip(row, widths, columns, strict=True)
    ]
    yield from zip_longest(*split, fillvalue="")


def _block(columns: Sequence[Column], row: Sequence[str], room: int) -> Iterator[str]:
    """Yield the lines of a row where the columns don't fit side by side: the first cell, then the others by heading."""
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
    """Take cells from the widest flexible column, one by one, until the row fits; return False if it never does.

    The first column, the subject of the row, gives only what the others can't.
    """
    while sum(widths) + GAP * (len(widths) - 1) > room:
        loose = [at for at, column in enumerate(columns) if column.flexible and widths[at] > NARROWEST]
        if not loose:
            return False
        widths[max(loose, key=lambda at: (at > 0, widths[at]))] -= 1
    return True


# ---------------------------------------------------------------------- times


def moment(milliseconds: int, now: int) -> str:
    """Return a time (ms since 1970) as ISO time in UTC, and how long ago that is."""
    return f"{utc(milliseconds)}, {ago(milliseconds, now)}"


def stamp_utc(milliseconds: int) -> str:
    """Return a time (ms since 1970) as an ISO date, with the time in UTC if it isn't midnight."""
    if in_utc(milliseconds) is None:
        return "after the year 9999"
    return utc(milliseconds).removesuffix("T00:00:00Z")


def stamp_ms(milliseconds: int) -> str:
    """Return a time (ms since 1970) as ISO time in UTC, to the ms."""
    moment = in_utc(milliseconds)
    return str(milliseconds) if moment is None else f"{utc(milliseconds)[:-1]}.{milliseconds % 1000:03}Z"


def ago(milliseconds: int, now: int) -> str:
    """Return how long ago that was, or how long it is off, by clocks that may differ."""
    seconds = (now - milliseconds) / 1000
    if abs(seconds) < 1:
        return "just now"
    return f"{lasting(seconds, 1)} ago" if seconds > 0 else f"in {lasting(-seconds, 1)}"
