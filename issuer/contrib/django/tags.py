"""Draws from tags, and creates the tags that are missing: in `migrate` and in tests, never in a web server.

A missing tag is a guard: if a server is started with the address of a wrong store, it must not issue numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO, TypeVar
from weakref import WeakKeyDictionary

from django.apps.registry import Apps
from django.apps.registry import apps as installed
from django.db import connections, router
from django.db.models import Field, IntegerField, Max, QuerySet

from issuer.api.blocking import Issuer
from issuer.contrib.django.conf import databases, options_of_tags
from issuer.contrib.django.issuers import ids, testing
from issuer.contrib.django.tagged import tagged_fields
from issuer.core.requests import TAKE_MOST
from issuer.errors import IssuerError, UnknownTag

T = TypeVar("T")

_migrating = False
_there: WeakKeyDictionary[Issuer, set[str]] = WeakKeyDictionary()

#: The tags that were created and are not yet reported, with their first numbers.
_created: dict[str, int] = {}


def take(tag: str, n: int, using: str, apps: Apps) -> list[int]:
    """Return n numbers of a tag.

    Args:
        tag: Name of the tag.
        n: How many numbers, 0 or more.
        using: Alias of the database of the rows.
        apps: As in `draw`.
    """

    def call(source: Issuer) -> list[int]:
        if n == 1:
            return [source.next(tag)]
        return [number for at in range(0, n, TAKE_MOST) for number in source.take(tag, min(n - at, TAKE_MOST))]

    return draw(tag, using, apps, call) if n else []


def draw(tag: str, using: str, apps: Apps | None, call: Callable[[Issuer], T]) -> T:
    """Draw from a tag. In a migration and in a test, create the tag if it is missing.

    Args:
        tag: Name of the tag.
        using: Alias of the database of the rows.
        apps: The models that use the tag. During a migration they are not those of the source code. None: those of the
            source code, but a test may not be allowed to read their tables.
        call: Draws from the issuer of the database.

    Raises:
        UnknownTag: The tag is missing, and this is a web server or another program.
    """
    source = ids(using)
    if _migrating or testing():
        # Not from other databases. The transaction of a migration may have locked what another connection reads.
        _create_missing(source, tag, [using], apps or (None if testing() else installed))
    try:
        return call(source)
    except UnknownTag as error:
        raise UnknownTag(tag, store=error.store, advice="unknown_tag.migrate") from None


def begin_migration(**_: object) -> None:
    """Before the first migration: from now on, a row that a migration inserts may need a tag that is missing."""
    global _migrating  # noqa: PLW0603 - a process migrates, or does not
    _migrating = True


def end_migration(
    *, using: str, verbosity: int, apps: Apps = installed, stdout: TextIO | None = None, **_: object
) -> None:
    """After the last migration: create the missing tags of all apps.

    Django calls this once for each app. The first call creates the tags: receivers of other apps may insert rows.

    Args:
        using: Alias of the database.
        verbosity: If it is 1 or more, created tags are reported.
        apps: The models as they are after the migrations.
        stdout: Where they are reported. Default: `sys.stdout`.
    """
    global _migrating  # noqa: PLW0603 - the same
    _migrating = False
    fields = [*tagged_fields(apps)]
    others = {*options_of_tags()} - {tag for tag, _ in fields}
    ours = [tag for tag, field in fields if router.allow_migrate_model(using, field.model)]
    for tag in [*ours, *sorted(others)]:
        _create_missing(ids(using), tag, _sharing(using), apps)
    for tag, first in _created.items() if verbosity else ():
        (stdout or sys.stdout).write(f"  Created tag {tag!r}. Its first number is {first}\n")
    _created.clear()


def _sharing(using: str) -> list[str]:
    """Return the aliases of the databases whose rows have numbers of the same issuer."""
    if using in databases() or testing():  # a test may not be allowed to read another database
        return [using]
    return [alias for alias in connections if alias not in databases()]


def _create_missing(source: Issuer, tag: str, aliases: list[str], apps: Apps | None) -> None:
    """If the tag is missing, create it above the numbers in the tables of `apps` in some databases."""
    there = _there.setdefault(source, set())
    if tag in there:
        return
    try:
        source.inspect(tag)
    except UnknownTag:
        options = dict(options_of_tags().get(tag, {}))
        fields = [field for other, field in tagged_fields(apps) if other == tag] if apps else []
        highest = max((_highest(field, alias) for field in fields for alias in aliases), default=0)
        first = max(highest + 1, options.pop("start", 1), options.pop("above", 0) + 1)
        try:
            source.create(tag, start=first, exist_ok=True, **options)
        except IssuerError as error:
            error.add_note(f"The tag {tag!r} was not created. The highest number in its tables is {highest}")
            raise
        _created[tag] = first
    there.add(tag)


def _highest(field: Field, using: str) -> int:
    model = field.model
    if not isinstance(field, IntegerField) or not router.allow_migrate_model(using, model):
        return 0
    connection, table = connections[using], model._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor, include_views=True):
            return 0
        columns = [each.name for each in connection.introspection.get_table_description(cursor, table)]
    if field.column not in columns:  # a later migration adds it
        return 0
    found = QuerySet(model, using=using).aggregate(highest=Max(field.attname))["highest"]  # all rows: no manager
    return max(found or 0, 0)
