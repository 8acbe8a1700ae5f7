"""A default for fields of any kind."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS
from django.utils.deconstruct import deconstructible

from issuer.contrib.django.tagged import Tagged
from issuer.contrib.django.tags import draw


@deconstructible(path="issuer.contrib.django.Next")
class Next(Tagged):
    """A default of a model field: `default=Next("tickets")`. It can be written to a migration.

    Django calls a default when an object is created, not when its row is inserted: each object that is not saved is a
    gap. An IssuerField draws later.
    """

    def __init__(self, tag: str, *, text: bool = False) -> None:
        """Define the default.

        Args:
            tag: Name of the tag.
            text: If True, return the text of the number, in the tag's format. If False, return the number.
        """
        self.tag = tag
        self.text = text

    def __call__(self) -> int | str:
        """Draw a number."""
        if self.text:
            return draw(self.tag, DEFAULT_DB_ALIAS, None, lambda source: source.issue(self.tag).text)
        return draw(self.tag, DEFAULT_DB_ALIAS, None, lambda source: source.next(self.tag))
