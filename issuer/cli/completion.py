"""Completion of tags in the shell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from issuer.cli.session import Session, is_missing
from issuer.wiring import connect

#: Longest that a Tab waits for the store, in seconds.
PATIENCE = 1.0

_F = TypeVar("_F", bound=Callable[..., Any])


class TagName(click.ParamType):  # type: ignore[type-arg]  # subscripting it fails in click 8.2
    """A tag; Tab offers those of the store."""

    name = "tag"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the store's tags that begin so; nothing if anything at all goes wrong."""
        del param
        logging.getLogger("issuer").addHandler(logging.NullHandler())
        logging.getLogger("issuer").propagate = False
        try:
            return [CompletionItem(tag) for tag in _tags(Session.of(ctx)) if tag.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - a Tab must never print an error into the user's line
            return []


def _tags(session: Session) -> list[str]:
    settings = session.settings()
    store = settings.store_url
    if is_missing(store):
        return []
    with closing(connect(redis="none", store=store, config=session.config, scheduler=None)) as issuer:
        return [record.tag for record in issuer.tags(timeout=PATIENCE)]


def tag_argument(*, required: bool = True) -> Callable[[_F], _F]:
    """Return the TAG argument of commands about a tag that is there."""
    return click.argument("tag", type=TagName(), required=required)
