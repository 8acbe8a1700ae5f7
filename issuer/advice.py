"""Advice for errors and findings, in the words of the interface that shows it.

A Python program gets `ids.recover('orders')`, a shell gets `issuer recover orders`, an HTTP client gets a request. One
form for all interfaces would be wrong: a command in a shell uses the store of the shell's settings, and the program may
use another store.

A text of advice contains fields in braces. Each field is replaced by a call of a method, as the interface writes it:

- `{do:recover at_least=N}` is a call of `recover` for the tag of the error, with the argument `at_least=N`.
- `{do:redis='none' recover}`: arguments before the method are arguments of `connect`.
- `{do:order='trend'}`: if a field has no method, only its arguments are shown.
- `{other:recover}` is a call for a second tag, which the text calls `other`. `{other}` is the name of that tag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from json import dumps
from shlex import quote
from types import MappingProxyType
from typing import Final
from urllib.parse import quote as escaped

#: The advice for each error, by the error's code. A key with a point, such as `corrupt_state.hash`, is for a special
#: case of the error `corrupt_state`.
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
    "unknown_tag.migrate": "create it with `manage.py migrate`, if this is the store of the project",
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
        "again, for numbers higher than all that were issued: use {do:above=N}, or the first number of each "
        "scramble key. Then run {do:recover}"
    ),
}


#: A function that writes a call of a method as text, for one interface: `python`, `command_line` or `http`. Its
#: parameters are the arguments of the method (`name=value` as in Python, or the name alone), the method, the tag, and
#: the arguments of `connect`. The method and the arguments have their Python names.
Words = Callable[..., str]

#: The HTTP request for each method. `{}` is replaced by the tag.
_REQUESTS: Final = {
    "create": "POST /v1/tags",
    "configure": "PATCH /v1/tags/{}",
    "delete": "DELETE /v1/tags/{}",
    "recover": "POST /v1/tags/{}/recover",
}


def python(given: Sequence[str], method: str = "", tag: str = "", connected: Sequence[str] = ()) -> str:
    """Return a call of a method as Python code. If `method` is "", return only the arguments.

    Args:
        given: Arguments of the method, such as `at_least=N`.
        method: Name of the method, or "".
        tag: Tag that the call is for.
        connected: Arguments of `connect`. If there are any, the code also contains the call of `connect`.
    """
    issuer = f"connect({', '.join(connected)})" if connected else "ids"
    return f"{issuer}.{method}({', '.join([repr(tag), *given])})" if method else ", ".join(given)


def command_line(given: Sequence[str], method: str = "", tag: str = "", connected: Sequence[str] = ()) -> str:
    """Return a call of a method as a shell command. If `method` is "", return only the options.

    Args:
        given: Arguments of the method, such as `at_least=N`. They become options after the command: `--at-least N`.
        method: Name of the method, or "".
        tag: Tag that the call is for.
        connected: Arguments of `connect`. They become options before the command.
    """
    line = " ".join([*map(_option, connected), *([method, quote(tag)] if method else []), *map(_option, given)])
    return f"`issuer {line}`" if method else line


def http(given: Sequence[str], method: str = "", tag: str = "", connected: Sequence[str] = ()) -> str:
    """Return a call of a method as an HTTP request. If `method` is "", return only members of the request's JSON body.

    An HTTP request cannot pass arguments of `connect` (`connected`) or name a journal (`from_journal` in `given`). If
    there are such arguments, return the shell command instead. The parameters are the same as those of `python`.
    """
    if connected or any(each.startswith("from_journal") for each in given):
        return command_line(given, method, tag, connected)
    if not method:
        return ", ".join(map(_member, given))
    named = {"create": [f'"tag": {dumps(tag, ensure_ascii=False)}'], "recover": ['"dry_run": false']}.get(method, [])
    body = ", ".join([*named, *map(_member, given)])
    return _REQUESTS[method].format(escaped(tag, safe="")) + (f" {{{body}}}" if body else "")


def _member(argument: str) -> str:
    name, equals, value = argument.partition("=")
    shown = {"True": "true", "False": "false"}.get(value, value.replace("'", '"'))
    return f'"{name}": {shown}' if equals else name


def _option(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if not equals and "_" not in name:
        return name
    option = f"--{name.replace('_', '-')}"
    return option if value in ("", "True") else option + " " + value.strip("'[]")


@dataclass(frozen=True, slots=True)
class _Do:
    """The value for a field, such as `do` in `{do:recover at_least=N}`.

    `str.format` calls `__format__` with the text after the colon, and inserts the result: the call of the method.

    `words`: function that writes a call for one interface. `tag`: tag that the call is for.
    """

    words: Words
    tag: str

    def __format__(self, said: str) -> str:
        if not said:
            return self.tag
        parts = said.split()
        at = next((at for at, part in enumerate(parts) if "=" not in part), None)
        return self.words(parts) if at is None else self.words(parts[at + 1 :], parts[at], self.tag, parts[:at])


def filled(text: str, words: Words, tag: str | None, others: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a text of advice, with each field in braces replaced by a call.

    Args:
        text: Text with fields such as `{do:recover}`, which becomes `ids.recover('orders')` for Python.
        words: Writes a call for one interface.
        tag: Tag for the fields that begin with `do`. None is shown as TAG.
        others: Further tags, by the name that the text has for them.
    """
    named = {name: _Do(words, other) for name, other in others.items()}
    return text.format(do=_Do(words, tag or "TAG"), **named)
