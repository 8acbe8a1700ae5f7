"""Options of the commands for single numbers, and the decoding of a number or a text that the user gives as VALUE."""

from __future__ import annotations

from string import Formatter

import click

from issuer.api.blocking import Issuer
from issuer.cli.options import F
from issuer.errors import NotDecodable, brief
from issuer.numbers.codec import DIGITS_MOST, Decoded


def value_argument(command: F) -> F:
    """Add the argument VALUE (a number or a text) and the option --number to a command."""
    told = "Read VALUE as a number, even if it looks like a text of the tag."
    return click.argument("value")(click.option("--number", "as_number", is_flag=True, help=told)(command))


def key_options(command: F) -> F:
    """Add the options --shard-key and --restart-key to a command."""
    told = "Key that selects the series. Only for keyed tags."
    command = click.option("--restart-key", metavar="TEXT", help=told)(command)
    told = "Key that selects the shard. Only for tags with shards."
    return click.option("--shard-key", metavar="TEXT", help=told)(command)


def read(issuer: Issuer, tag: str, value: str, *, as_number: bool, holder: bool = False) -> Decoded:
    """Decode VALUE, which is a number or a text of the tag.

    It is read as a number if it cannot be a text in the tag's format, or if `as_number` is True.

    `holder`: whether to find the process that holds the machine number of a snowflake tag.
    """
    number = int(value) if value.isascii() and value.isdecimal() and len(value) <= DIGITS_MOST else None
    if as_number:
        if number is None:
            raise NotDecodable(f"{brief(value)} is not a whole number", tag=tag, value=value)
        return issuer.decode(tag, number, holder=holder)
    try:
        return issuer.decode(tag, value, holder=holder)
    except NotDecodable as error:
        if number is None:
            raise
        scheme = issuer.inspect(tag).scheme
        if "format" not in scheme:
            raise
        literals = (literal for literal, *_ in Formatter().parse(str(scheme["format"])))
        if any(literal and not literal.isdecimal() for literal in literals):
            return issuer.decode(tag, number, holder=holder)
        # The texts of the tag consist only of digits. So VALUE can be a number, or a text with a typing mistake that
        # does not fit the check digit. Do not guess: the user must give --number for a number.
        raise NotDecodable(f"{error}; if it is a number, give --number", tag=tag, value=value) from error


def ambiguous(issuer: Issuer, tag: str) -> str:
    """Return why a number of this tag belongs to several counter values, and what to give instead, as text."""
    scheme = issuer.inspect(tag).scheme
    if "restart" in scheme:
        return "each period has this number; give the text, which contains the period"
    return "each series has this number; give the text"
