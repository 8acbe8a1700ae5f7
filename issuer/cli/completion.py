"""Completion of tag names in the shell."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import closing

import click

from issuer.cli.options import F
from issuer.cli.session import Session, is_missing
from issuer.wiring import connect

#: Longest wait for the store after a user has pressed the Tab key, in seconds.
PATIENCE = 1.0


def _completed(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the first tags that begin with the text `incomplete`. If an error occurs, return []."""
    logging.getLogger("issuer").addHandler(logging.NullHandler())
    logging.getLogger("issuer").propagate = False
    try:
        session = Session.of(context)
        store = session.settings().store_url
        if is_missing(store):
            return []
        with closing(connect(redis="none", store=store, config=session.config, scheduler=None)) as issuer:
            page = next(iter(issuer.engine.care.tag_pages(PATIENCE, after=_before(incomplete))))
            return [record.tag for record in page if record.tag.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - an error would be printed into the command that the user is typing
        return []


def _before(incomplete: str) -> str | None:
    """Return a text just before the tags that begin with `incomplete`, to list tags from there on."""
    return f"{incomplete[:-1]}{chr(ord(incomplete[-1]) - 1)}{chr(sys.maxunicode)}" if incomplete else None


def tag_argument(*, required: bool = True) -> Callable[[F], F]:
    """Return a decorator that adds the argument TAG, the name of an existing tag. The Tab key completes the name."""
    return click.argument("tag", shell_complete=_completed, required=required)
