"""A session: the options of the group, and the issuer that is created from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from issuer import settings as settings_
from issuer.api.blocking import Issuer
from issuer.care import Outcome
from issuer.cli.options import given_settings
from issuer.errors import ConfigurationError
from issuer.wiring import connect, default_is_known
from issuer_persistence.opening import file_path
from issuer_persistence.urls import mask


@dataclass(slots=True)
class Session:
    """`options`: settings that were given as options of the group, by name."""

    options: Mapping[str, Any]
    config: str | None = None
    _issuer: Issuer | None = field(default=None, init=False)

    @classmethod
    def of(cls, context: click.Context) -> Session:
        """Return the session of a command line, also during completion with the Tab key."""
        root = context.find_root()
        if not isinstance(root.obj, cls):
            root.obj = cls(given_settings(root.params), root.params.get("config"))
        return root.obj

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, as arguments of `connect`."""
        named = {settings_.DEFINITIONS[name].argument: value for name, value in self.options.items()}
        return named if self.config is None else {**named, "config": self.config}

    def settings(self, more: Mapping[str, Any] | None = None) -> settings_.Settings:
        """Return the settings. `more`: options of the command, by name. Raises ConfigurationError."""
        return settings_.load({**self.options, **(more or {})}, config=self.config)

    def connect(self, scheduler: Literal["background"] | None = None, *, makes_store: bool = False) -> Issuer:
        """Return the issuer. The first call creates it; it is closed at the end. Raises ConfigurationError.

        Without a scheduler, the command loads segments itself, within its timeout, and leaves no background work.
        `makes_store`: whether the command may create the store. For other commands, a missing file is an error:
        otherwise `doctor` and `verify` would check a new, empty store, and find no problem.
        """
        if self._issuer is None:
            settings = self.settings()
            store, source = settings.store_url, settings.sources["store_url"]
            if settings.embedded and not is_missing(store):
                default_is_known()  # the warning about it was shown when the file was created
            if not makes_store and source != settings_.DEFAULT and is_missing(store):
                raise ConfigurationError(
                    f"there is no store {mask(store)} (from {source}): correct the name; "
                    "to make a new store, create its first tag with `issuer create`"
                )
            # Rejected calls are not logged, because the command reports its error itself.
            self._issuer = connect(**self.given, scheduler=scheduler, rejected=lambda *_: None)
            click.get_current_context().find_root().call_on_close(self._issuer.close)
        return self._issuer


def is_missing(store: object) -> bool:
    """Return True if the store is a file that does not exist. It would look empty, and a write would create it."""
    path = file_path(store) if isinstance(store, str) else ""
    try:
        return bool(path) and not Path(path).exists()
    except OSError:  # the store reports the problem
        return False


T = TypeVar("T")

#: From this many tags on there is a progress bar.
MANY = 20


def progress_bar(label: str) -> Callable[[int, int], None]:
    """Return a function that shows a bar, with the time left, on a terminal. It takes the tags done and their total."""
    bar: Any = None

    def progress(done: int, of: int) -> None:
        nonlocal bar
        if bar is None:
            bar = click.progressbar(
                length=of, label=label, file=sys.stderr, hidden=of < MANY or not sys.stderr.isatty()
            )
        bar.update(1)
        if done == of:
            bar.render_finish()

    return progress


def with_progress(outcomes: Iterator[Outcome[T]], label: str) -> Iterator[Outcome[T]]:
    """Yield the outcomes. If there are many, show a progress bar."""
    progress = progress_bar(label)
    for done, outcome in enumerate(outcomes, 1):
        yield outcome
        progress(done, outcome.of)
