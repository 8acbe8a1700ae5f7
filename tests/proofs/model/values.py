"""Immutable values that a search makes out of one another, millions of times."""

from typing import Any, NamedTuple, TypeVar

Value = TypeVar("Value", bound=NamedTuple)


def quick(kind: type[Value]) -> type[Value]:
    """Give a NamedTuple a `_replace` that does the same in half the time: its own looks for each field by its name."""
    places = {name: place for place, name in enumerate(kind._fields)}
    make = tuple.__new__

    def _replace(self: Value, /, **changes: Any) -> Value:
        values = list(self)
        for name, value in changes.items():
            values[places[name]] = value
        return make(kind, values)

    setattr(kind, "_replace", _replace)  # noqa: B010 - mypy knows it as final
    return kind
