"""Completion of tag names in the shell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from issuer.cli.session import Session, is_missing
from issuer.wiring import connect

#: Longest wait for the store after the Tab key, in seconds.
PATIENCE = 1.0

_F = TypeVar("_F", bound=Callable[..., Any])


class TagName(click.ParamType):  # type: ignore[type-arg]  # subscripting it fails in click 8.2
    """Name of a tag. The Tab key completes it."""

    name = "tag"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the tags that begin with the text. After any error, return nothing."""
        del param
        logging.getLogger("issuer").addHandler(logging.NullHandler())
        logging.getLogger("issuer").propagate = False
        try:
            return [CompletionItem(tag) for tag in _tags(Session.of(ctx)) if tag.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - an error must not be printed into the user's line
            return []


def _tags(session: Session) -> list[str]:
    settings = session.settings()
    store = settings.store_url
    if is_missing(store):
        return []
    with closing(connect(redis="none", store=store, config=session.config, scheduler=None)) as issuer:
        return [record.tag for record in issuer.tags(timeout=PATIENCE)]


def tag_argument(*, required: bool = True) -> Callable[[_F], _F]:
    """Return the argument TAG for an existing tag."""
    return click.argument("tag", type=TagName(), required=required)
