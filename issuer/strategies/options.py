"""Reads the options of a scheme, with their types and ranges. Unknown options are errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from issuer.errors import ConfigurationError, brief

#: The types of an option.
Scalar = str | int | float | bool


def check_names(strategy: str, options: Mapping[str, Scalar], allowed: Collection[str]) -> None:
    """Raise ConfigurationError if there is an unknown option."""
    for name in options:
        if name not in allowed:
            raise ConfigurationError(
                f"strategy {strategy!r} has no option {brief(name)}; its options are "
                f"{', '.join(sorted(allowed)) or 'none'}"
            )


def whole(options: Mapping[str, Scalar], name: str, default: int, least: int, most: int) -> int:
    """Return the option `name`, a whole number least..most. Raises ConfigurationError."""
    value = options.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigurationError(f"option {name} must be a whole number {least}..{most}, not {brief(value)}")
    return value


def number(options: Mapping[str, Scalar], name: str, default: float, least: float, most: float) -> float:
    """Return the option `name`, a number least..most. Raises ConfigurationError."""
    value = options.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise ConfigurationError(f"option {name} must be a number {least:g}..{most:g}, not {brief(value)}")
    return float(value)


def text(options: Mapping[str, Scalar], name: str, default: str) -> str:
    """Return the option `name`, a text. Raises ConfigurationError."""
    value = options.get(name, default)
    if not isinstance(value, str):
        raise ConfigurationError(f"option {name} must be a text, not {brief(value)}")
    return value
