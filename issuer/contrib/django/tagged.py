"""Fields that draw from a tag."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps.registry import Apps
from django.db import models


class Tagged:
    """A field, or a default of a field, that draws from a tag.

    Attributes:
        tag: Name of the tag.
    """

    tag: str


def tagged_fields(apps: Apps) -> Iterator[tuple[str, models.Field]]:
    """Yield each field that draws, with its tag."""
    for model in apps.get_models():
        for field in model._meta.local_concrete_fields:
            for each in (field, field.default):
                if isinstance(each, Tagged):
                    yield each.tag, field
