"""Asking before something is changed."""

from __future__ import annotations

import sys

import click


def check_askable(*, yes: bool) -> None:
    """UsageError if the question can't be put: there is neither a terminal on stdin nor --yes."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("stdin is no terminal, so the question can't be put: give --yes to go on")


def asked(question: str, *, yes: bool) -> None:
    """Return if the answer is yes; click.Abort otherwise."""
    check_askable(yes=yes)
    if yes:
        return
    # Not click.confirm: it turns Ctrl-C into the same Abort as "no", and readline would write to stdout.
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise click.Abort
