"""The issuer in a Django project: fields whose numbers come from an issuer. See docs/guide/django.md."""

from __future__ import annotations

from issuer.contrib.django.defaults import Next
from issuer.contrib.django.fields import IssuerField, IssuerManager, IssuerQuerySet
from issuer.contrib.django.issuers import ids

__all__ = ["IssuerField", "IssuerManager", "IssuerQuerySet", "Next", "ids"]
