"""The app: what Django runs when it starts."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate, pre_migrate

import issuer
from issuer.contrib.django.checks import check_deployment, check_models, check_settings, check_tags
from issuer.contrib.django.issuers import aconnect, connect
from issuer.contrib.django.tags import begin_migration, end_migration


class IssuerApp(AppConfig):
    """The app `issuer.contrib.django`."""

    name = "issuer.contrib.django"
    label = "issuer"
    verbose_name = "Segment issuer"

    def ready(self) -> None:
        """Make the default issuers those of the settings. No server is contacted before the first number."""
        issuer.set_default(connect)
        issuer.set_adefault(aconnect)
        pre_migrate.connect(begin_migration)
        post_migrate.connect(end_migration)
        checks.register(check_settings)
        checks.register(check_tags)
        checks.register(check_models, checks.Tags.models)
        checks.register(check_deployment, deploy=True)
