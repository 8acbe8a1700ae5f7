"""Runs the same operation for many tags at once: their requests are sent together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from issuer.core.steps import Ask, Elsewhere, Send, Sleep, Step, Steps, ask, elsewhere, pipeline, public, renewed, sleep
from issuer.errors import IssuerError
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError, Unconfirmed

T = TypeVar("T")


class TagBatch(Generic[T]):
    """The steps of many tags. The steps of one tag run in their order. An error of one tag does not stop the others.

    Attributes:
        pending: The next request of each tag whose steps have not ended. The request that has waited longest is first.
            While `pending` is not empty, call `go_on`.
        results: Result of each tag whose steps have ended.
        errors: Error of each tag whose steps have failed.
    """

    def __init__(self, every: Mapping[str, Steps[T]], store: Store | None = None, *, probe: bool = True) -> None:
        """`every`: the steps of each tag. `store`: for messages. `probe`: see Send. A batch that probes may wait."""
        self._probe = probe
        self.results: dict[str, T] = {}
        self.errors: dict[str, IssuerError] = {}
        self._steps = {tag: public(steps, tag, store) for tag, steps in every.items()}
        self.pending: dict[str, Step] = {}
        for tag in every:
            self._resume(tag, None)

    def go_on(self) -> Steps[None]:
        """Send the request that has waited longest, together with the other tags' requests of the same kind."""
        kind = type(next(iter(self.pending.values())))
        tags = [tag for tag, step in self.pending.items() if type(step) is kind]
        try:
            answers = yield from _together([self.pending[tag] for tag in tags], probe=self._probe)
        except (IssuerError, StoreError) as error:
            answers = [error] * len(tags)
        for tag, answer in zip(tags, answers, strict=False):
            self._resume(tag, answer)

    def _resume(self, tag: str, answer: Any) -> None:
        self.pending.pop(tag, None)
        steps = self._steps[tag]
        if isinstance(answer, IssuerError):
            answer = renewed(answer)  # a copy, as other tags may get the same error object
            answer.tag = answer.tag or tag
        try:
            self.pending[tag] = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
        except StopIteration as end:
            self.results[tag] = end.value
        except IssuerError as error:
            self.errors[tag] = error


def _together(steps: Sequence[Step], *, probe: bool) -> Steps[Sequence[Any]]:
    """Return the answer or error of each. If the list is shorter than `steps`, the caller sends the rest later."""
    match steps:
        case [Send(), _, *_]:
            return (yield from pipeline([step.call for step in steps if isinstance(step, Send)], probe=probe))
        case [Elsewhere(), _, *_]:
            seen = yield from elsewhere([step.calls[0] for step in steps if isinstance(step, Elsewhere)])
            return [[each] for each in seen]
        case [Sleep(), _, *_]:
            yield from sleep(max(step.seconds for step in steps if isinstance(step, Sleep)))
            return [None] * len(steps)
        case [Ask(), _, *_]:
            questions = [step.question for step in steps if isinstance(step, Ask)]
            try:
                return (yield from ask(lambda store, timeout: store.batch(questions, timeout=timeout)))
            except Unconfirmed:
                raise
            except StoreError:  # nothing was changed: send the first request alone, to see which tag has the error
                pass
    try:
        return [(yield steps[0])]
    except (IssuerError, StoreError) as error:
        return [error]
