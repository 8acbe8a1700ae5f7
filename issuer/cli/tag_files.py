"""Reads and writes files of tags, for `issuer import` and `issuer export`.

A file has a line for each tag, as CSV or as JSON lines. The columns are `tag`, the name of the tag, and the arguments
of `Issuer.create`. In CSV, an empty field means that an argument is not given. Lists and objects in CSV are JSON texts.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, Any, Final

import click

from issuer.api.blocking import Issuer
from issuer.cli.exits import OK, PROBLEM, USAGE, code_of, complain
from issuer.clock import monotonic
from issuer.errors import InvalidArgument, IssuerError, brief
from issuer.gateway.keys import PART
from issuer.operations.exporting import export_page
from issuer.operations.tag_options import TAG_OPTIONS, TagOptions
from issuer.operations.tags import compare
from issuer.terminal import numbered, plain, say
from issuer.threads import finished
from issuer.times import lasting
from issuer.views import said

#: Number of lines whose tags are created with one call: all of them or none.
PAGE: Final = 500

COLUMNS: Final = ("tag", *TAG_OPTIONS)

#: The allowed types of a value in a file, by the kind of the setting.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "whole": (int,), "number": (int,), "share": (int, float), "text": (str,), "word": (str,), "flag": (bool,),
    "step": (int, str), "lease": (int, str), "duration": (int, str),
    "limit": (int, str), "scramble": (str, list), "shards": (bool, dict), "options": (dict,),
}  # fmt: skip
_DIGITS: Final = re.compile(r"-?[0-9]{1,100}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file. `number`: number of the line, counted from 1. `said`: arguments of `create` for the tag."""

    number: int
    tag: str
    said: dict[str, Any]


class LineError(InvalidArgument):
    """A line of a file is wrong. `line`: number of the line, counted from 1."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}", value=line)
        self.line = line


def _read_lines(file: IO[str]) -> Iterator[Line]:
    """Yield the lines of a file. At the first line that is wrong, raise LineError."""
    first = file.readline()
    texts, lines = chain([first], file), dict[str, int]()
    # Neither sign begins a file of CSV, because no column has such a name.
    for number, found in _from_json(texts) if first.lstrip().startswith(("{", "[")) else _from_csv(texts):
        tag = found.pop("tag", None)
        if not isinstance(tag, str) or not tag:
            raise LineError(number, "the name of the tag is missing: give `tag`")
        if tag in lines:
            raise LineError(number, f"tag {tag!r} is also in line {lines[tag]}")
        lines[tag] = number
        for name, value in found.items():
            types = _TYPES[TAG_OPTIONS[name].kind]
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                raise LineError(number, f"{name} must not be {brief(value)}")
        yield Line(number, tag, found)


def _from_csv(texts: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(texts, strict=True)
    try:
        _check_names(1, reader.fieldnames or ())
        for row in reader:
            number = reader.line_num
            if None in row:
                raise LineError(number, f"there are more than {len(reader.fieldnames or ())} fields")
            yield number, {name: _value(number, name, text) for name, text in row.items() if text}
    except csv.Error as error:
        raise LineError(reader.reader.line_num, f"not valid CSV: {error}") from error


def _value(line: int, name: str, text: str) -> Any:
    kind = "text" if name == "tag" else TAG_OPTIONS[name].kind
    if kind in ("whole", "number", "step", "lease", "share", "limit", "duration") and _DIGITS.fullmatch(text):
        return int(text)
    if kind == "share" or (kind in ("scramble", "shards", "options", "flag") and (text in _JSON or text[0] in "[{")):
        try:
            return json.loads(text)
        except ValueError as error:
            raise LineError(line, f"{name} is not valid: {brief(text)}") from error
    return text


_JSON: Final = ("true", "false")


def _from_json(texts: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LineError(number, f"not valid JSON: {error}") from error
        if not isinstance(found, dict):
            raise LineError(number, "not a JSON object")
        _check_names(number, [*found])
        yield number, {name: value for name, value in found.items() if value is not None}


def _check_names(line: int, names: Sequence[str]) -> None:
    if strange := [name for name in names if name not in COLUMNS]:
        raise LineError(line, f"{brief(strange[0])} is no setting of a tag; there are {', '.join(COLUMNS)}")
    if len({*names}) < len(names):
        raise LineError(line, "a column is there twice")


def import_file(issuer: Issuer, path: str, *, dry_run: bool) -> int:
    """Create the tags of a file that do not exist. Return the exit code.

    `path`: path of the file, "-" for stdin. `dry_run`: only compare the file with the tags in the store.
    """
    click.Path(exists=True, dir_okay=False, allow_dash=True)(path)  # raises a usage error
    with click.open_file(path, "rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
        lines = _read_lines(file)
        try:
            return _compared(issuer, lines) if dry_run else _created(issuer, lines)
        except UnicodeDecodeError:
            complain(f"{plain(path)} is not UTF-8")
            return USAGE


def _created(issuer: Issuer, lines: Iterator[Line]) -> int:
    count, began, progress = 0, monotonic(), _Progress()
    page: dict[str, Line] = {}
    try:
        while page := {line.tag: line for line in islice(lines, PAGE)}:
            issuer.create_many({tag: line.said for tag, line in page.items()}, exist_ok=True)
            count += len(page)
            progress.show(count)
    except IssuerError as error:
        line = page.get(str(error.tag)) or page.get(str(error.tag).rpartition(PART)[0])
        complain(said(error) if line is None or isinstance(error, LineError) else f"line {line.number}: {said(error)}")
        again = "; correct the file and run the command again" if count else ""
        say(f"{numbered(count, 'tag')} of the lines before were imported; no tag of this page of {PAGE} lines{again}")
        return code_of(error)
    say(f"imported {numbered(count, 'tag')} in {lasting(monotonic() - began)}")
    return OK


def _compared(issuer: Issuer, lines: Iterator[Line]) -> int:
    """Print each line that is wrong, or that differs from the existing tag. Return the exit code."""
    counts, code, progress, engine = {"new": 0, "same": 0, "differ": 0, "wrong": 0}, OK, _Progress(), issuer.engine
    for page in _pages(lines):
        steps = {tag: compare(tag, TagOptions.of(line.said), engine.config) for tag, line in page.items()}
        batch = finished(lambda: engine.care.ended(steps, None))  # noqa: B023 - called at once
        for tag, line in page.items():
            if error := batch.errors.get(tag):
                complain(f"line {line.number}: {said(error)}")
                counts["wrong"] += 1
                code = code_of(error)
                continue
            differs = batch.results[tag]
            counts["new" if differs is None else "differ" if differs else "same"] += 1
            for name, (want, has) in (differs or {}).items():
                click.echo(f"line {line.number}: {plain(tag)}: {name} is {brief(has)}, not {brief(want)}")
        progress.show(sum(counts.values()))
    say(f"{counts['new']:,} new, {counts['same']:,} the same, {counts['differ']:,} differ, {counts['wrong']:,} wrong")
    return code or (PROBLEM if counts["differ"] else OK)


def _pages(lines: Iterator[Line]) -> Iterator[dict[str, Line]]:
    """Yield pages of at most PAGE lines, by name of the tag. If a line is wrong, first yield the lines before it."""
    wrong, page = None, dict[str, Line]()
    while wrong is None:
        page = {}
        try:
            for line in islice(lines, PAGE):
                page[line.tag] = line
        except LineError as error:
            wrong = error
        if not page:
            break
        yield page
    if wrong is not None:
        raise wrong


def export(issuer: Issuer, write: Callable[[bytes], object], *, as_json: bool) -> int:
    """Write the settings of all tags, sorted by name. Return the exit code.

    `write`: function that gets the output piece by piece. `as_json`: write JSON lines, not CSV.
    """
    count, left_out, progress, engine, code = 0, list[str](), _Progress(), issuer.engine, OK
    write((",".join(COLUMNS) + "\n").encode() if not as_json else b"")
    after: str | None = None
    while True:
        page = finished(lambda: engine.run(export_page(after), engine.deadline(None), None))  # noqa: B023 - called at once
        write(_text(page.tags, as_json=as_json).encode())
        count, after = count + len(page.tags), page.last
        left_out += page.left_out
        for error in page.damaged:
            complain(error)
            code = PROBLEM
        progress.show(count)
        if after is None:
            break
    if not left_out:
        return code
    named = ", ".join(map(plain, left_out[:20])) + (", ..." if len(left_out) > 20 else "")  # noqa: PLR2004 - as many fit
    complain(
        f"{numbered(len(left_out), 'tag')} left out, because another store would issue their numbers again: {named}"
    )
    return PROBLEM


def _text(tags: Sequence[Mapping[str, Any]], *, as_json: bool) -> str:
    if as_json:
        return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in tags)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    for each in tags:
        writer.writerow({name: value if isinstance(value, str) else json.dumps(value) for name, value in each.items()})
    return text.getvalue()


class _Progress:
    """Writes the number of tags and the rate to stderr, at most once a second. Only if stderr is a terminal."""

    def __init__(self) -> None:
        self._began = self._last = monotonic()

    def show(self, count: int) -> None:
        now = monotonic()
        if now - self._last >= 1 and sys.stderr.isatty():
            self._last = now
            say(f"{numbered(count, 'tag')}, {count / (now - self._began):,.0f} a second")
