"""The settings of a tag as callers give them, checked and turned into the values that stores take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from issuer.core.requests import above_of, whole
from issuer.errors import ConfigurationError, InvalidArgument, brief
from issuer.gateway.keys import check_description, check_tag
from issuer_persistence.records import (
    AHEAD_MOST,
    DEFAULT_STEP,
    HIGHEST,
    LEASE_MOST,
    Order,
    StepMode,
    TagChanges,
    TagSettings,
)
from issuer_persistence.scheme_json import PLAIN


@dataclass(frozen=True, slots=True)
class TagOptions:
    """The arguments of `Issuer.create` or `Issuer.configure` that say how a tag is set; None: not given.

    `given`: those that say how its numbers are made, see SchemeOptions.
    """

    start: int | None = None
    above: int | None = None
    step: int | Literal["auto"] | None = None
    limit: int | str | None = None
    order: Order | None = None
    lease: int | None = None
    ahead: int | None = None
    description: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, tag: str, *, limit: int, redis: bool, scheme: Mapping[str, object] = PLAIN) -> TagSettings:
        """Return what `Store.create` takes. InvalidArgument, or ConfigurationError for a strict tag without Redis.

        `limit`, `scheme`: the last counter, and the scheme that was made of `given`. `redis`: whether there is one.
        """
        check_tag(tag)
        last = whole(limit, "limit", 1, HIGHEST)
        above = above_of(tag, self.start, self.above, last) or 0
        step, mode = self._step()
        order: Order = self.order if self.order is not None else ("strict" if redis else "trend")
        if order not in ("strict", "trend"):
            raise InvalidArgument(f"order must be 'strict' or 'trend', not {brief(order)}", tag=tag, value=order)
        if order == "strict" and not redis:
            problem = f"tag {tag!r}: strict order needs Redis, but no Redis is configured"
            raise ConfigurationError(problem, tag=tag, advice="configuration.strict_without_redis")
        return TagSettings(
            above=above,
            step=DEFAULT_STEP if step is None else step,
            step_mode=mode or "auto",
            limit=last,
            order=order,
            lease=None if self.lease is None else _lease(tag, self.lease, order),
            ahead=1 if self.ahead is None else whole(self.ahead, "ahead", 1, AHEAD_MOST),
            description="" if self.description in (None, "") else check_description(self.description),
            scheme=scheme,
        )

    def changes(
        self,
        tag: str,
        *,
        limit: int | None,
        raise_to: int | None = None,
        scheme: Mapping[str, object] | None = None,
        seen: str | None = None,
    ) -> TagChanges:
        """Return what `Store.configure` takes. InvalidArgument, also if nothing would change.

        `limit`, `raise_to`: the last counter, and the one to go on above. `scheme`: made of `given` and of the record
        whose version was `seen`.
        """
        said = (self.step, limit, raise_to, self.lease, self.ahead, self.description, scheme)
        if all(value is None for value in said):
            raise InvalidArgument(
                "nothing to change: give step, limit, start, above, lease, ahead or description; or of the number "
                "scheme format, timezone, scramble with scramble_strict, stride with offset and stride_above",
                tag=tag,
            )
        step, mode = self._step()
        return TagChanges(
            step=step,
            step_mode=mode,
            limit=None if limit is None else whole(limit, "limit", 1, HIGHEST),
            lease=None if self.lease is None else _lease(tag, self.lease, None),
            ahead=None if self.ahead is None else whole(self.ahead, "ahead", 1, AHEAD_MOST),
            description=None if self.description is None else check_description(self.description),
            raise_to=raise_to,
            scheme=scheme,
            seen=seen,
        )

    def _step(self) -> tuple[int | None, StepMode | None]:
        if self.step is None or self.step == "auto":
            return (None, None) if self.step is None else (DEFAULT_STEP, "auto")
        return whole(self.step, "step", 1, HIGHEST), "fixed"


def _lease(tag: str, lease: int, order: Order | None) -> int:
    size = whole(lease, "lease", 0, LEASE_MOST)
    if size and order == "strict":
        raise InvalidArgument(f"tag {tag!r} is strict, and only trend tags can have a lease", tag=tag, value=lease)
    return size
