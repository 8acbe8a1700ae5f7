"""What the commands of one command line share: the group's options, and the issuer that is made from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import click

from issuer import settings as settings_
from issuer.facade import Issuer
from issuer.wiring import connect


@dataclass(slots=True)
class Session:
    """The group's options, None where not given."""

    redis: str | None = None
    store: str | None = None
    prefix: str | None = None
    timeout: float | None = None
    config: str | None = None
    _issuer: Issuer | None = field(default=None, init=False)

    @classmethod
    def of(cls, context: click.Context) -> Session:
        """Return the session of the command line that the context belongs to, also while it is being completed."""
        root = context.find_root()
        if not isinstance(root.obj, cls):
            root.obj = cls(**{name: root.params.get(name) for name in GROUP_OPTIONS})
        return root.obj

    def settings(self) -> settings_.Settings:
        """Return every setting with where it came from. Raises ConfigurationError."""
        given = {
            "redis_url": self.redis,
            "store_url": self.store,
            "prefix": self.prefix,
            "timeout": self.timeout,
        }
        return settings_.load(given, config=self.config)

    def connect(self, scheduler: Literal["background"] | None = None) -> Issuer:
        """Return the issuer, made at the first call and closed with the command line. Raises ConfigurationError.

        Without a scheduler a command extends by itself, within its timeout, and nothing in the background outlasts it.
        """
        if self._issuer is None:
            given: dict[str, Any] = {name: getattr(self, name) for name in GROUP_OPTIONS}
            # Not given and None differ: None would mean direct, whatever environment and file say.
            if self.redis is None:
                del given["redis"]
            self._issuer = connect(**given, scheduler=scheduler, rejected=_told)
            click.get_current_context().find_root().call_on_close(self._issuer.close)
        return self._issuer


def _told(tag: str, cause: Exception) -> None:
    """Log nothing: the command tells its error itself."""


GROUP_OPTIONS = ("redis", "store", "prefix", "timeout", "config")
