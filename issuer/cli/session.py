"""A session: one run of the command line, with the options before the command and the issuer made from them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from issuer import settings as settings_
from issuer.api.blocking import Issuer
from issuer.care.results import Outcome
from issuer.cli.options import given_settings
from issuer.clock import monotonic
from issuer.errors import ConfigurationError
from issuer.wiring import connect, default_is_known
from issuer_persistence.opening import file_path
from issuer_persistence.urls import mask


@dataclass(slots=True)
class Session:
    """A run of the command line. `options`: settings given before the command. `config`: path of the settings file."""

    options: Mapping[str, Any]
    config: str | None = None
    _issuer: Issuer | None = field(default=None, init=False)

    @classmethod
    def of(cls, context: click.Context) -> Session:
        """Return the session of a click context. If there is none, as during completion with Tab, create it."""
        root = context.find_root()
        if not isinstance(root.obj, cls):
            root.obj = cls(given_settings(root.params), root.params.get("config"))
        return root.obj

    @property
    def given(self) -> dict[str, Any]:
        """The options before the command, as arguments for `issuer.connect`."""
        named = {settings_.DEFINITIONS[name].argument: value for name, value in self.options.items()}
        return named if self.config is None else {**named, "config": self.config}

    def settings(self, more: Mapping[str, Any] | None = None) -> settings_.Settings:
        """Return all settings. `more`: settings from options of the command, by name. Raises ConfigurationError."""
        return settings_.load({**self.options, **(more or {})}, config=self.config)

    def connect(self, scheduler: Literal["background"] | None = None, *, makes_store: bool = False) -> Issuer:
        """Return the issuer. The first call creates the issuer. It is closed when the command ends.

        `makes_store`: whether the command may create the store. If not, a missing file raises ConfigurationError.
        Otherwise `doctor` and `verify` would create an empty store and find no problem in it.
        """
        if self._issuer is None:
            settings = self.settings()
            store, source = settings.store_url, settings.sources["store_url"]
            if settings.embedded and not is_missing(store):
                default_is_known()  # the warning about the default store was shown when the file was created
            if not makes_store and source != settings_.DEFAULT and is_missing(store):
                raise ConfigurationError(
                    f"there is no store {mask(store)} (from {source}): correct the name; "
                    "to make a new store, create its first tag with `issuer create`"
                )
            self._issuer = connect(**self.given, scheduler=scheduler)
            click.get_current_context().find_root().call_on_close(self._issuer.close)
        return self._issuer


def is_missing(store: object) -> bool:
    """Return True if the store is a file that does not exist.

    If a command opened such a store only to read it, the store would look empty.
    """
    path = file_path(store) if isinstance(store, str) else ""
    try:
        return bool(path) and not Path(path).exists()
    except OSError:  # `connect` reports the problem later
        return False


T = TypeVar("T")

#: With this many tags or more, a progress bar is shown.
MANY = 20

#: How many times a progress bar is drawn until it is complete.
REFRESHES = 200


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call after each tag. It shows a progress bar with rate and time left on stderr.

    The bar hides the cursor. At the end of the `with` block, also by Ctrl-C, the cursor is shown again. If stderr is no
    terminal, or there are few tags, no bar is shown. The arguments of the function are the number of tags that are
    done, and the number of all tags.
    """
    bar: Any = None
    begun = monotonic()

    def rate(done: int | None) -> str:
        return f"{(done or 0) / max(monotonic() - begun, 0.001):,.0f} tags a second"

    def progress(done: int, of: int) -> None:
        nonlocal bar
        if bar is None:
            hidden = of < MANY or not sys.stderr.isatty()
            steps = max(1, of // REFRESHES)
            bar = click.progressbar(
                length=of, label=label, file=sys.stderr, hidden=hidden, item_show_func=rate, update_min_steps=steps
            )
        bar.update(1, done)

    try:
        yield progress
    finally:
        if bar is not None:
            bar.render_finish()


def with_progress(outcomes: Iterable[Outcome[T]], label: str) -> Iterator[Outcome[T]]:
    """Yield the outcomes, one per tag. If there are MANY tags or more, show a progress bar."""
    with progress_bar(label) as progress:
        for done, outcome in enumerate(outcomes, 1):
            yield outcome
            progress(done, outcome.of)
