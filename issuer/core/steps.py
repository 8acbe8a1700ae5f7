"""What a protocol generator may ask of its driver."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from issuer.gateway import Call
from persistence.contract import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Send:
    """Send this call to Redis once, never again, and give back the decoded reply."""

    call: Call[Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """Call the store. The function gets the store and the seconds it may take."""

    question: Callable[[Store, float], Any]


Step = Send | Ask
#: A protocol operation that ends with a T. The driver sends each step's result in, or throws its error in.
Steps = Generator[Step, Any, T]


def send(call: Call[T]) -> Steps[T]:
    """Yield a Redis call; its decoded reply is the value."""
    reply: T = yield Send(call)
    return reply


def ask(question: Callable[[Store, float], T]) -> Steps[T]:
    """Yield a store call; its result is the value."""
    answer: T = yield Ask(question)
    return answer
