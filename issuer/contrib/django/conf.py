"""The settings of a project: `ISSUER`, `ISSUER_DATABASES` and `ISSUER_TAGS`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

import issuer
from issuer.errors import ConfigurationError, brief
from issuer.operations.tag_options import TAG_OPTIONS
from issuer.settings import DEFINITIONS, Settings, load

#: The names that `ISSUER` may have.
ARGUMENTS: Final = tuple(signature(issuer.connect).parameters)

#: The names that the options of a tag in `ISSUER_TAGS` may have.
OPTIONS: Final = (*TAG_OPTIONS,)


def options_of_tags() -> Mapping[str, Mapping[str, Any]]:
    """Return `ISSUER_TAGS`: the arguments of `Issuer.create` with which missing tags are created, by tag."""
    found: Mapping[str, Mapping[str, Any]] = getattr(settings, "ISSUER_TAGS", {})
    return found


def databases() -> Mapping[str, Any]:
    """Return `ISSUER_DATABASES`: for each alias of `DATABASES` that has an issuer of its own, its arguments."""
    found: Mapping[str, Any] = getattr(settings, "ISSUER_DATABASES", {})
    return found


def arguments(using: str) -> dict[str, Any]:
    """Return the arguments of `issuer.connect` for the issuer of a database.

    Raises:
        ImproperlyConfigured: An argument is unknown, or no server is named and DEBUG is False.
    """
    setting, given = given_to(using)
    problem = misspelt(setting, given)
    if problem:
        raise ImproperlyConfigured(problem)
    if not settings.DEBUG and resolved(given).embedded:
        raise ImproperlyConfigured(nameless(setting))
    return dict(given)


def given_to(using: str | None) -> tuple[str, Mapping[str, Any]]:
    """Return the setting of the issuer of a database, or of the default issuer: its name and its value."""
    if using is not None and using in databases():
        return f"ISSUER_DATABASES[{using!r}]", databases()[using]
    return "ISSUER", getattr(settings, "ISSUER", {})


def misspelt(setting: str, given: object, known: Sequence[str] = ARGUMENTS, of: str = "issuer.connect") -> str:
    """Return what is wrong with the names in a setting, or "" if they are right.

    Args:
        setting: Name of the setting.
        given: Its value.
        known: The right names.
        of: Function whose arguments they are.
    """
    if not isinstance(given, Mapping):
        return f"{setting} must be a dictionary of arguments of {of}, not {brief(given)}"
    for name in given:
        if name not in known:
            close = get_close_matches(str(name).lower(), known, n=1)
            meant = f" Did you mean {close[0]!r}?" if close else ""
            return f"{setting}: {of} has no argument {name!r}.{meant} Its arguments are {', '.join(known)}"
    return ""


def nameless(setting: str) -> str:
    """Return what is wrong with a setting that names no server."""
    return (
        f"{setting} names no store, and DEBUG is False: each machine would issue the same numbers, from a file of its "
        f'own. Name servers that all machines share, as in {setting} = {{"redis": "redis://...", "store": '
        '"postgresql://..."}; or, if there is one machine, a file: {"store": "sqlite:////var/lib/shop/issuer.db"}'
    )


def resolved(given: Mapping[str, Any]) -> Settings:
    """Return the settings of an issuer, also those from environment variables and the settings file.

    Raises:
        ConfigurationError: A value is invalid.
    """
    for name in ("redis", "store"):
        if name in given and given[name] is None:
            raise ConfigurationError(f"{name} is None: leave it out, or name the server")
    known = {
        each.name: given[each.argument] for each in DEFINITIONS.values() if each.connect and each.argument in given
    }
    return load(known, config=given.get("config"))
