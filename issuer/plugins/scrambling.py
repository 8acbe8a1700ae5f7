"""A second scrambling: numbers changed by a permutation of the caller's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from issuer.errors import ConfigurationError, brief
from issuer.plugins.contract import Call, Plugin


class Scrambles(Protocol):
    """A permutation of numbers, one to one."""

    def scramble(self, n: int, /) -> int:
        """Return the number's image; no other number has the same one."""


class Scrambler(Plugin):
    """Gives each number as the permutation has it.

    Nothing of it is kept with the tag: every process that draws from the tag has to register the same permutation, from
    the tag's first number on. A tag's own `scramble` setting is checked for that; prefer it where it will do.
    """

    transforms = True

    def __init__(
        self, permutation: Scrambles, *, order: int | None = None, strategies: Collection[str] | None = None
    ) -> None:
        """Take any object with `scramble(n)`. Raises ConfigurationError if it has none."""
        super().__init__(order=order, strategies=strategies)
        if not callable(getattr(permutation, "scramble", None)):
            raise ConfigurationError(f"{brief(permutation)} can't scramble numbers: it needs a method scramble(n)")
        self._permutation = permutation

    def after(self, call: Call, number: int) -> int:
        """Return the number's image."""
        del call
        return self._permutation.scramble(number)
