"""Segment: the tag's counter as a strategy. The issuer serves it itself; here it has the face of the others."""

from __future__ import annotations

from collections.abc import Sequence

from issuer.clock import Deadline
from issuer.core.steps import Steps
from issuer.errors import ConfigurationError
from issuer.strategies.contract import Context, Strategy
from issuer.strategies.options import check_names


class Segment(Strategy):
    """Passes on what the context's `draw` gives."""

    def __init__(self, context: Context) -> None:
        """Raise ConfigurationError if there is nothing to draw from."""
        super().__init__(context)
        check_names("segment", context.options, ())
        if context.draw is None:
            raise ConfigurationError("strategy 'segment' needs the counter of the tag", tag=context.tag)
        self._draw = context.draw

    def generating(self, n: int, deadline: Deadline) -> Steps[Sequence[int]]:
        """Draw, as often as segments end."""
        numbers: list[int] = []
        while len(numbers) < n:
            numbers += yield from self._draw(n - len(numbers), deadline)
        return numbers

    def closing(self, deadline: Deadline) -> Steps[None]:  # noqa: ARG002 - nothing to do
        """Leave the counter to the issuer."""
        return
        yield
