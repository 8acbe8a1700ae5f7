"""Advice: what to do about an error or a finding, in the words of the edge that shows it.

In a text `{do:...}` is what the reader types. It is written as in Python: a method of an Issuer, then its arguments
after the tag; before the method stand arguments of `connect`; and there may be arguments alone. In place of `do` there
may be a name for another tag, and `{name}` is that tag.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from shlex import quote
from types import MappingProxyType
from typing import Final
from urllib.parse import quote as escaped

#: By the code of an error; after a point, what single errors of that code advise in place of it.
ADVICE: Final[Mapping[str, str]] = {
    "configuration.strict_without_redis": "use {do:order='trend'}",
    "configuration.other_journals": (
        "use the journals of this store; or, if this store replaces the other one, run {do:recover at_least=N} for "
        "each tag"
    ),
    "scheme.scramble_strict": "use {do:order='trend'}, or set {do:scramble_strict=True} if that is intended",
    "foreign_hash": (
        "give each store its own prefix. If users of this store received numbers from this hash, first raise the tag "
        "above them under the new prefix: {do:recover at_least=N}, or {do:create above=N} if this store does not "
        "have the tag. N is the highest number in that hash, or the other store's max"
    ),
    "unknown_tag": "create it with {do:create}",
    "tag_exists": "change it with {do:configure}",
    "tag_differs": "use its settings, or change them with {do:configure}",
    "limit_reached": "raise the limit with {do:configure limit=N}",
    "store_full": "free space on that disk, or move the file to a larger one. Reservations then continue by themselves",
    "redis_unavailable.recover": (
        "if Redis stays down, {do:redis='none' recover at_least=N} raises the store alone, and a trend tag can be "
        "used again. But numbers above N that only Redis has recorded would be issued twice. Recover once more when "
        "Redis is back"
    ),
    "called_within": (
        "in a finalizer, a callback of weakref or gc, a log handler or an observer, put the work into a "
        "queue.SimpleQueue, and draw in a thread of the program"
    ),
    "unauthenticated": "send a token of the server's tokens file: `Authorization: Bearer TOKEN`, or `AUTH TOKEN`",
    "forbidden": "use another token, or change the line of this token in the server's tokens file",
    "corrupt_state.recover": "run {do:recover}",
    "corrupt_state.hash": "look at the hash with HGETALL, then run {do:recover}",
    "corrupt_state.older_hash": "run {do:recover}, then find out who renames, moves, copies or restores keys",
    "journal_damaged": (
        "rename the file, so that a new one is started. For `recover`, remove that line from a copy of the file, and "
        "give {do:at_least=N}, the highest number in your tables"
    ),
    "store_behind": "reservations are stopped until {do:recover} has run",
    "store_behind.scheme": (
        "reservations are stopped: run {do:recover from_journal=[FILE]}. If there are no journals, set the scheme "
        "again, for numbers higher than all that were issued: use {do:stride_above=N}, or the first number of each "
        "scramble key. Then run {do:recover}"
    ),
}


#: Words of an edge: of arguments, each written as in Python or its name alone; or of a call of `connect`'s arguments, a
#: method, the tag and arguments.
Words = Callable[..., str]


def python(given: Sequence[str], method: str = "", tag: str = "", connected: Sequence[str] = ()) -> str:
    """Return what a program of Python says."""
    issuer = f"connect({', '.join(connected)})" if connected else "ids"
    return f"{issuer}.{method}({', '.join([repr(tag), *given])})" if method else ", ".join(given)


def command_line(given: Sequence[str], method: str = "", tag: str = "", connected: Sequence[str] = ()) -> str:
    """Return what is typed in a shell."""
    command = [{"configure": "set"}.get(method, method), quote(tag)] if method else []
    line = " ".join([*map(_option, connected), *command, *map(_option, given)])
    return f"`issuer {line}`" if method else line


#: By method, the call of HTTP, below /v1/tags.
_CALLS: Final = {
    "create": ("POST", ""),
    "configure": ("PATCH", "/{}"),
    "delete": ("DELETE", "/{}"),
    "recover": ("POST", "/{}/recover"),
}


def http(given: Sequence[str], method: str = "", tag: str = "", connected: Sequence[str] = ()) -> str:
    """Return what a client of HTTP sends. What only the server's machine can do is what is typed there."""
    if connected or any(each.startswith("from_journal") for each in given):
        return command_line(given, method, tag, connected)
    if not method:
        return ", ".join(map(_member, given))
    verb, path = _CALLS[method]
    named = [] if path else [f"tag={tag!r}"]
    if method == "recover":
        named.append("dry_run=False")
    body = ", ".join(map(_member, (*named, *given)))
    return f"{verb} /v1/tags{path.format(escaped(tag, safe=''))}" + (f" {{{body}}}" if body else "")


def _member(argument: str) -> str:
    """Return an argument as JSON has it; a name alone as it is."""
    name, equals, value = argument.partition("=")
    if not equals:
        return name
    try:
        shown = dumps(literal_eval(value), ensure_ascii=False)
    except (ValueError, SyntaxError):  # N, which the reader fills in
        shown = value
    return f'"{name}": {shown}'


def _option(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if not equals and "_" not in name:
        return name
    option = f"--{name.replace('_', '-')}"
    return option if value in ("", "True") else option + " " + value.strip("'[]")


@dataclass(frozen=True, slots=True)
class _Do:
    """A call, or arguments, that the reader types: it is formatted in an edge's words."""

    words: Words
    tag: str

    def __format__(self, said: str) -> str:
        if not said:
            return self.tag
        parts = said.split()
        at = next((at for at, part in enumerate(parts) if "=" not in part), None)
        return self.words(parts) if at is None else self.words(parts[at + 1 :], parts[at], self.tag, parts[:at])


def filled(text: str, words: Words, tag: str | None, others: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return an advice in these words. `tag`: the one concerned; `others`: the other tags that it names."""
    named = {name: _Do(words, other) for name, other in others.items()}
    return text.format(do=_Do(words, tag or "TAG"), **named)
