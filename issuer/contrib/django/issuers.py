"""The issuers of a project: as its settings name them, or those of a test double while tests run."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import django
from django.apps import apps
from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

import issuer
from issuer.contrib.django.conf import arguments, databases, given_to, options_of_tags
from issuer.contrib.django.tagged import tagged_fields
from issuer.errors import brief
from issuer.settings import DEFINITIONS

if TYPE_CHECKING:
    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer

T = TypeVar("T")

#: Arguments of `issuer.connect` with the addresses of servers and files, and their environment variables. A double has
#: its own.
_SERVERS: Final = {"redis": "ISSUER_REDIS_URL", "store": "ISSUER_STORE_URL", "config": "ISSUER_CONFIG"}

#: Arguments of a client of a server, which a double is not.
_CLIENT: Final = ("server", "token", "token_file")

#: Environment variable with the servers of the doubles, as JSON.
_DOUBLES: Final = "DJANGO_ISSUER_DOUBLES"

_by_database: dict[tuple[str, bool], Issuer] = {}

#: For which values of `testing` an issuer was opened since the default issuers were set.
_opened: set[bool] = set()
_lock = threading.Lock()


def ids(using: str = DEFAULT_DB_ALIAS) -> Issuer:
    """Return the issuer for the rows of a database. While Django's tests run, it is the issuer of a test double.

    Args:
        using: Alias of the database in `DATABASES`. If `ISSUER_DATABASES` does not have the alias, the default issuer
            is returned.

    Raises:
        ImproperlyConfigured: The settings are wrong.
    """
    tested = notice_tests()
    if using not in databases():
        return issuer.default()
    found = _by_database.get((using, tested))
    if found is None or found.closed:
        found = _by_database[using, tested] = _open(issuer.connect, using)
    return found


def notice_tests() -> bool:
    """Return `testing()`. If the tests have begun or ended since a default issuer was opened, replace the defaults."""
    tested = testing()
    if not _opened <= {tested}:
        _opened.clear()
        issuer.set_default(connect)
        issuer.set_adefault(aconnect)
    return tested


def connect() -> Issuer:
    """Return a new default issuer."""
    return _open(issuer.connect, DEFAULT_DB_ALIAS)


def aconnect() -> AsyncIssuer:
    """Return a new default AsyncIssuer."""
    return _open(issuer.aconnect, DEFAULT_DB_ALIAS)


def _open(connect: Callable[..., T], using: str) -> T:
    tested = testing()
    _opened.add(tested)
    if tested:
        from issuer.wiring import without_environment

        with _lock:
            return without_environment(connect, **_doubled(using))
    return connect(**arguments(using))


def testing() -> bool:
    """Return whether Django's tests run in this process: `manage.py test`, pytest-django, or a worker of either.

    Django records this in a class that has no public name. The public signs are not exact: a server has `mail.outbox`
    if it uses the e-mail backend `locmem`, and django-debug-toolbar sends the signals of rendered templates.

    Raises:
        ImproperlyConfigured: By all public signs, tests run. But this version of Django does not record it there.
    """
    utils = sys.modules.get("django.test.utils")
    if utils is None:
        return False
    state = utils._TestState if hasattr(utils, "_TestState") else None  # noqa: SLF001 - see above
    if getattr(state, "saved_data", None) is not None:
        return True
    unknown = state is None or any(not name.startswith("__") for name in vars(state))
    if unknown and hasattr(mail, "outbox") and "testserver" in settings.ALLOWED_HOSTS:
        raise ImproperlyConfigured(
            f"Django {django.get_version()} does not show whether tests run, so that a test could draw from the "
            "servers of ISSUER. Use a version of Django that the page of the issuer for Django names"
        )
    return False


def environment(using: str) -> dict[str, str]:
    """Return the environment with which the command line uses the issuer of a database.

    Raises:
        ImproperlyConfigured: The settings are wrong, or have a Python object in place of a URL.
    """
    with _lock:
        given = _doubled(using) if testing() else arguments(using)
    found = {name: value for name, value in os.environ.items() if not (testing() and name.startswith("ISSUER_"))}
    for name, variable in [*_SERVERS.items(), *((each.argument, each.variable) for each in DEFINITIONS.values())]:
        value = given.get(name)
        if isinstance(value, Mapping):
            value = ",".join(f"{key}={text if isinstance(text, str) else text.decode()}" for key, text in value.items())
        if not isinstance(value, (str, int, float, os.PathLike, NoneType)):
            problem = f"{given_to(using)[0]}: the command line needs a URL as {name}, not {brief(value)}"
            raise ImproperlyConfigured(problem)
        if value is not None:
            found[variable] = str(value)
    return found


def _doubled(using: str) -> dict[str, Any]:
    """Return the arguments of `issuer.connect` for the test double of a database. The first call makes the double.

    The processes that a test runner starts use the doubles of the test runner.

    A double has the tags of `ISSUER_TAGS` that are not tags of fields. For those see `issuer.contrib.django.tags`.
    """
    from issuer.testing import Double

    _, given = given_to(using)
    kept = {name: value for name, value in given.items() if name not in (*_SERVERS, *_CLIENT, "journal")}
    known = json.loads(os.environ.get(_DOUBLES, "{}"))
    if using not in known:
        made = Double(**kept).__enter__()
        atexit.register(made.close)
        known[using] = {name: made.environment[variable] for name, variable in _SERVERS.items()}
        os.environ[_DOUBLES] = json.dumps(known)
        of_fields = {tag for tag, _ in tagged_fields(apps)}
        others = {tag: options for tag, options in options_of_tags().items() if tag not in of_fields}
        if others:
            made.ids.create_many(others)
    return {**kept, **known[using]}
