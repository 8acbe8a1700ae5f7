"""System checks of settings and models. They contact no server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution
from django.db.models import BigIntegerField, IntegerField

from issuer.contrib.django.conf import OPTIONS, given_to, misspelt, nameless, options_of_tags, resolved
from issuer.contrib.django.defaults import Next
from issuer.contrib.django.fields import IssuerQuerySet, fields_of
from issuer.contrib.django.issuers import notice_tests, testing
from issuer.contrib.django.tagged import tagged_fields
from issuer.errors import ConfigurationError
from issuer.settings import Settings
from issuer_persistence.opening import file_path


def check_settings(**_: Any) -> list[CheckMessage]:
    """Check `ISSUER` and `ISSUER_DATABASES`."""
    notice_tests()  # Django runs its checks before the tests: the tests get default issuers of their own
    return list(_wrong_settings())


def _wrong_settings() -> Iterator[CheckMessage]:
    per_database = getattr(settings, "ISSUER_DATABASES", {})
    if not isinstance(per_database, Mapping):
        yield Error("ISSUER_DATABASES must be a dictionary: for an alias of DATABASES its ISSUER", id="issuer.E001")
        return
    for using in (None, *per_database):
        setting, given = given_to(using)
        if using is not None and using not in settings.DATABASES:
            aliases = ", ".join(settings.DATABASES)
            yield Error(f"{setting}: DATABASES has no such alias, but {aliases}", id="issuer.E002")
        if problem := misspelt(setting, given):
            yield Error(problem, id="issuer.E001")
            continue
        try:
            found = resolved(given)
        except ConfigurationError as error:
            yield Error(f"{setting}: {error}", id="issuer.E001")
            continue
        if found.embedded and not settings.DEBUG and not testing():
            yield Error(nameless(setting), id="issuer.E003")
        store = _file(found)
        if store and any(Path(store).resolve() == Path(str(each["NAME"])).resolve() for each in _databases_in_files()):
            problem = f"{setting}: the store {store} is a database of the project, which the issuer cannot write to"
            hint = "Give the issuer a file of its own. While the project has a transaction open, SQLite locks the file"
            yield Error(problem, hint=hint, id="issuer.E007")


def _databases_in_files() -> list[dict[str, Any]]:
    return [each for each in settings.DATABASES.values() if each["ENGINE"].endswith("sqlite3")]


def _file(found: Settings) -> str:
    return file_path(found.store_url) if isinstance(found.store_url, str) else ""


def check_tags(**_: Any) -> list[CheckMessage]:
    """Check `ISSUER_TAGS`, and whether the tags of unique fields count on."""
    known: Any = options_of_tags()
    if not isinstance(known, Mapping):
        return [Error("ISSUER_TAGS must be a dictionary: for a tag its options", id="issuer.E006")]
    problems = [misspelt(f"ISSUER_TAGS[{tag!r}]", given, OPTIONS, "Issuer.create") for tag, given in known.items()]
    again = {
        tag for tag, given in known.items() if isinstance(given, Mapping) and ({"restart", "keyed"} & given.keys())
    }
    return [Error(problem, id="issuer.E006") for problem in problems if problem] + [
        Caution(
            f"The field is unique, and the numbers of {tag!r} begin again for each period or key",
            hint="Store the text of issuer.issue, whose format shows the period or key, in a CharField",
            obj=field,
            id="issuer.W004",
        )
        for tag, field in tagged_fields(apps)
        if tag in again and field.unique and isinstance(field, IntegerField)
    ]


def check_models(**_: Any) -> list[CheckMessage]:
    """Check managers of models with an IssuerField, and the size of fields with the default `Next`."""
    models = apps.get_models()
    return [
        Caution(
            f"bulk_create of {model._meta.label}.{manager.name} draws each number by itself",
            hint="Base its queryset on issuer.contrib.django.IssuerQuerySet",
            obj=model,
            id="issuer.W001",
        )
        for model in models
        for manager in (model._meta.managers if fields_of(model) else ())
        if not isinstance(manager.get_queryset(), IssuerQuerySet)
    ] + [
        Caution(
            "Numbers of a tag have up to 64 bits",
            hint=f"Use a BigIntegerField, or: manage.py issuer configure {field.default.tag} --limit int32",
            obj=field,
            id="issuer.W002",
        )
        for model in models
        for field in model._meta.local_concrete_fields
        if isinstance(field.default, Next)
        and isinstance(field, IntegerField)
        and not isinstance(field, BigIntegerField)
    ]


def check_deployment(**_: Any) -> list[CheckMessage]:
    """Check for `check --deploy` that the store is not a file."""
    setting, given = given_to(None)
    with suppress(ConfigurationError):  # `check_settings` reports it
        if not misspelt(setting, given) and _file(resolved(given)):
            return [
                Caution(
                    "The numbers come from a file of this machine: another machine would issue the same numbers",
                    hint=f"If there are several machines or containers, set a store and a Redis in {setting}",
                    id="issuer.W003",
                )
            ]
    return []
