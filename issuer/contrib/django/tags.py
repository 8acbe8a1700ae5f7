"""Draws from tags, and creates the tags that are missing: in `migrate` and in tests, never in a web server.

A missing tag is a guard: if a server is started with the address of a wrong store, it must not issue numbers.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from django.apps.registry import Apps
from django.apps.registry import apps as installed
from django.db import connections, router
from django.db.models import Field, IntegerField, Max

from issuer.api.blocking import Issuer
from issuer.contrib.django.conf import options_of_tags
from issuer.contrib.django.issuers import ids, testing
from issuer.contrib.django.tagged import tagged_fields
from issuer.errors import UnknownTag

#: What Issuer.take returns at most.
_TAKE_MOST: Final = 1_000_000

_migrating = False
_there: WeakKeyDictionary[Issuer, set[str]] = WeakKeyDictionary()


def take(tag: str, n: int, using: str, apps: Apps) -> list[int]:
    """Return n numbers of a tag.

    Args:
        tag: Name of the tag.
        n: How many numbers, 0 or more.
        using: Alias of the database of the rows.
        apps: As in `source_of`.
    """
    drawn: list[int] = []
    while len(drawn) < n:
        source = source_of(tag, using, apps)
        drawn += [source.next(tag)] if n == 1 else source.take(tag, min(n - len(drawn), _TAKE_MOST))
    return drawn


def source_of(tag: str, using: str, apps: Apps | None) -> Issuer:
    """Return the issuer for a tag. In a migration and in a test, create the tag if it is missing.

    Args:
        tag: Name of the tag.
        using: Alias of the database of the rows.
        apps: The models that use the tag. During a migration they are not those of the source code. None: those of the
            source code, but a test may not be allowed to read their tables.
    """
    source = ids(using)
    if _migrating or testing():
        _create_missing(source, tag, using, apps or (None if testing() else installed))
    return source


def begin_migration(**_: object) -> None:
    """Before the first migration: from now on, a row that a migration inserts may need a tag that is missing."""
    global _migrating  # noqa: PLW0603 - a process migrates, or does not
    _migrating = True


def end_migration(sender: Any, *, using: str, verbosity: int, apps: Apps = installed, **_: object) -> None:
    """After the last migration: create the missing tags of an app.

    Args:
        sender: The app.
        using: Alias of the database.
        verbosity: If it is 1 or more, created tags are reported.
        apps: The models as they are after the migrations.
    """
    global _migrating  # noqa: PLW0603 - the same
    _migrating = False
    for tag in _tags_of(sender.label, using, apps):
        first = _create_missing(ids(using), tag, using, apps)
        if first and verbosity:
            print(f"  Created tag {tag!r}. Its first number is {first}")  # noqa: T201 - as `migrate` does


def _tags_of(app: str, using: str, apps: Apps) -> list[str]:
    """Return the tags of the fields of an app in a database, and those of `ISSUER_TAGS` that are not tags of fields."""
    fields = [*tagged_fields(apps)]
    others = {*options_of_tags()} - {tag for tag, _ in fields}
    ours = [
        tag
        for tag, field in fields
        if field.model._meta.app_label == app and router.allow_migrate_model(using, field.model)
    ]
    return [*dict.fromkeys(ours), *sorted(others)]


def _create_missing(source: Issuer, tag: str, using: str, apps: Apps | None) -> int | None:
    """If the tag is missing, create it above the numbers in the tables of `apps`, and return its first number."""
    there = _there.setdefault(source, set())
    if tag in there:
        return None
    first = None
    try:
        source.inspect(tag)
    except UnknownTag:
        options = dict(options_of_tags().get(tag, {}))
        fields = [field for other, field in tagged_fields(apps) if other == tag] if apps else []
        highest = max((_highest(field, using) for field in fields), default=0)
        first = max(highest + 1, options.pop("start", 1), options.pop("above", 0) + 1)
        source.create(tag, start=first, exist_ok=True, **options)
    there.add(tag)
    return first


def _highest(field: Field, using: str) -> int:
    """Return the highest number in a column, or 0 if there is none."""
    model = field.model
    if not isinstance(field, IntegerField) or not router.allow_migrate_model(using, model):
        return 0
    connection, table = connections[using], model._meta.db_table
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return 0
        columns = [each.name for each in connection.introspection.get_table_description(cursor, table)]
    if field.column not in columns:  # a later migration adds it
        return 0
    found = model._base_manager.using(using).aggregate(highest=Max(field.attname))["highest"]
    return max(found or 0, 0)
