"""The model field whose numbers come from an issuer, and the queryset that draws many at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar, TypeVar

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, models
from django.db.models.signals import class_prepared, pre_save

from issuer.contrib.django.conf import databases
from issuer.contrib.django.tagged import Tagged
from issuer.contrib.django.tags import take
from issuer.errors import InvalidArgument
from issuer.gateway.keys import check_tag

M = TypeVar("M", bound=models.Model)


class IssuerField(Tagged, models.BigIntegerField):
    """A field with numbers of a tag: as the primary key, or beside it.

    A row without a number gets the next one of the tag when the row is saved, not when the object is created. A number
    that is given is kept. A transaction that is rolled back leaves a gap: its numbers are not issued again.

    `bulk_create` draws all numbers at once. Forms do not show the field, unless it has `editable=True`.

    Args:
        tag: Name of the tag. `migrate` creates the tag if it is missing, above the numbers that the table has.
    """

    description = "Number of an issuer (64 bits)"
    non_db_attrs: ClassVar = (*models.BigIntegerField.non_db_attrs, "tag")

    def __init__(self, *args: Any, tag: str, **kwargs: Any) -> None:
        self.tag = tag
        super().__init__(*args, **{"blank": True, "editable": False, **kwargs})

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        """Return what a migration writes."""
        name, path, args, kwargs = super().deconstruct()
        kwargs |= {"tag": self.tag, "blank": self.blank, "editable": self.editable}
        for option, default in (("blank", True), ("editable", False)):
            if kwargs[option] is default:
                del kwargs[option]
        return name, path.replace("issuer.contrib.django.fields.", "issuer.contrib.django."), args, kwargs

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check the field as Django does, its tag, and that the app is installed."""
        found: list[checks.CheckMessage] = super().check(**kwargs)
        try:
            check_tag(self.tag)
        except InvalidArgument as error:
            found.append(checks.Error(f"IssuerField: {error}", obj=self, id="issuer.E004"))
        if not apps.is_installed("issuer.contrib.django"):
            hint = "Add 'issuer.contrib.django' to INSTALLED_APPS"
            found.append(checks.Error("IssuerField needs its app", hint=hint, obj=self, id="issuer.E005"))
        return found

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # noqa: ARG002, FBT001 - Django's signature
        """Return the value to write. If the row has no number, it is drawn when the database is known."""
        number = getattr(model_instance, self.attname)
        return _Undrawn(model_instance) if number is None else number

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Return the value for the database. Numbers take a shorter way than in Django, as `bulk_create` has many."""
        if isinstance(value, _Undrawn):
            value = self.draw(value.instance, connection.alias)
        if type(value) is int:
            return connection.ops.adapt_integerfield_value(value, self.get_internal_type())
        return super().get_db_prep_save(value, connection)

    def get_pk_value_on_save(self, instance: models.Model) -> int | None:
        """Return a primary key for `bulk_create` of a manager that does not draw for all rows at once.

        `save` calls this method, too, and gets None: then it inserts the row without trying to update it first, and
        the number is drawn later, for the database of the statement.
        """
        if self.attname in _undrawn(instance):
            _undrawn(instance).remove(self.attname)
            return None
        if databases():
            raise ImproperlyConfigured(
                f"{instance._meta.label}: the manager that bulk_create was called on does not choose the issuer of the "
                "database. Base its queryset on issuer.contrib.django.IssuerQuerySet"
            )
        return self.draw(instance, DEFAULT_DB_ALIAS)

    def draw(self, instance: models.Model, using: str) -> int:
        """Return the number of an object. If it has none, draw one, and set it on the object.

        Args:
            instance: The object.
            using: Alias of the database of the row.
        """
        number: int | None = getattr(instance, self.attname)
        if number is None:
            [number] = take(self.tag, 1, using, self.model._meta.apps)
            setattr(instance, self.attname, number)
        return number


class _Undrawn:
    """In place of a number, until Django writes the statement for a database: only then the database is certain.

    Attributes:
        instance: The object that gets the number.
    """

    def __init__(self, instance: models.Model) -> None:
        self.instance = instance


def fields_of(model: type[models.Model]) -> list[IssuerField]:
    """Return the IssuerFields of a model, also those that it has from its parents."""
    return [field for field in model._meta.concrete_fields if isinstance(field, IssuerField)]


def _undrawn(instance: models.Model) -> set[str]:
    """Return the attributes of primary keys that had no number when `save` began."""
    found: set[str] = instance._state.__dict__.setdefault("issuer_undrawn", set())
    return found


def _before_save(sender: type[models.Model], *, instance: models.Model, raw: bool, using: str, **_: object) -> None:
    """Note a missing primary key, so that its field can tell `save` from `bulk_create`. In a fixture, draw the numbers.

    A fixture has the row of a parent by itself. Django inserts the rows of a fixture without calling `pre_save`.
    """
    for field in fields_of(sender):
        if instance.__dict__.get(field.attname, 0) is None:  # 0: not loaded, so the row has it
            if not raw and field in field.model._meta.pk_fields:
                _undrawn(instance).add(field.attname)
            elif raw and field.model is sender._meta.concrete_model:
                field.draw(instance, using)


class IssuerQuerySet(models.QuerySet):
    """A queryset whose `bulk_create` draws the numbers of all rows at once.

    Models with an IssuerField and without a manager of their own have it already. Base your own querysets on it:
    `class OrderQuerySet(IssuerQuerySet)`, and `objects = OrderQuerySet.as_manager()`.
    """

    def bulk_create(  # noqa: PLR0917 - Django's signature
        self,
        objs: Iterable[M],
        batch_size: int | None = None,
        ignore_conflicts: bool = False,  # noqa: FBT001, FBT002 - Django's signature
        update_conflicts: bool = False,  # noqa: FBT001, FBT002
        update_fields: Collection[str] | None = None,
        unique_fields: Collection[str] | None = None,
    ) -> list[M]:
        """Insert the objects as Django does. Those without a number get one; all numbers of a field are drawn at once.

        With `ignore_conflicts` or `update_conflicts`, the objects have no drawn numbers afterwards: a row that exists
        keeps its own number, and Django does not report which rows exist.

        Raises:
            InvalidArgument: An object without a number is in `objs` twice. Nothing was drawn.
        """
        rows = list(objs)
        self._for_write = True  # so that `self.db` is the database that is written to
        using = self.db  # read only once: at the next read, a router may choose another database
        without = [
            (field, [each for each in rows if getattr(each, field.attname) is None]) for field in fields_of(self.model)
        ]
        if any(len({id(each) for each in missing}) < len(missing) for _, missing in without):
            raise InvalidArgument(
                f"{self.model._meta.label}: bulk_create was given the same object twice, and two rows would get the "
                "same number. Make one object for each row"
            )
        drawn = []
        for field, missing in without:
            numbers = take(field.tag, len(missing), using, self.model._meta.apps)
            for row, number in zip(missing, numbers, strict=True):
                setattr(row, field.attname, number)
            drawn.append((field.attname, missing))
        options = {"ignore_conflicts": ignore_conflicts, "update_conflicts": update_conflicts}
        made: list[M] = super(IssuerQuerySet, self.using(using)).bulk_create(
            rows, batch_size, update_fields=update_fields, unique_fields=unique_fields, **options
        )
        if any(options.values()):
            for name, missing in drawn:
                for row in missing:
                    setattr(row, name, None)
        return made

    bulk_create.alters_data = True  # type: ignore[attr-defined]  # templates must not call it


#: A manager with this queryset.
IssuerManager: Any = models.Manager.from_queryset(IssuerQuerySet, "IssuerManager")


def _prepared(sender: type[models.Model], **_: object) -> None:
    """Replace the manager that Django has added to a model with an IssuerField, so that `bulk_create` draws once."""
    if fields_of(sender):
        added = [each for each in sender._meta.local_managers if each.auto_created]
        for manager in added:
            sender._meta.local_managers.remove(manager)
            sender.add_to_class(manager.name, IssuerManager())


class_prepared.connect(_prepared)
pre_save.connect(_before_save)
