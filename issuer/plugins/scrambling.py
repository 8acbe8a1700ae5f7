"""Scrambler: replaces each number by another one, with a one-to-one mapping (a permutation) of your own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from issuer.errors import ConfigurationError, brief
from issuer.plugins.contract import Call, Plugin


class Scrambles(Protocol):
    """A one-to-one mapping of numbers."""

    def scramble(self, n: int, /) -> int:
        """Return the image of n. No other number has the same image."""


class Scrambler(Plugin):
    """Plugin that replaces each number by its image under a permutation.

    Every process that draws from the tag must use the same permutation from the first number on. The issuer cannot
    check that. Where possible, use the tag's own setting `scramble`, which the issuer checks.

    Args:
        permutation: Object with a method `scramble(n)`.
        order: Position among plugins. None means 0.
        strategies: Names of strategies. Only numbers of tags with these strategies are replaced. None means all.

    Raises:
        ConfigurationError: `permutation` has no method `scramble`.
    """

    transforms = True

    def __init__(
        self, permutation: Scrambles, *, order: int | None = None, strategies: Collection[str] | None = None
    ) -> None:
        """See the class."""
        super().__init__(order=order, strategies=strategies)
        if not callable(getattr(permutation, "scramble", None)):
            raise ConfigurationError(f"{brief(permutation)} has no method scramble(n)")
        self._permutation = permutation

    def after(self, call: Call, number: int) -> int:
        """Return the image of the number.

        Args:
            call: The call for numbers.
            number: The number.
        """
        del call
        return self._permutation.scramble(number)
