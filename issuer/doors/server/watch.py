"""The work of a keeper: a process that loads segments (ranges of numbers) for all tags of the store."""

from __future__ import annotations

import logging
from threading import Event

from issuer.api.blocking import Issuer
from issuer.errors import ConfigurationError, IssuerError
from issuer.settings import Settings
from issuer_persistence.urls import mask

log = logging.getLogger("issuer.doors.server")

#: Seconds between two checks.
EVERY = 2.0


def keep(issuer: Issuer, settings: Settings, stop: Event) -> None:
    """Load segments for every tag of the store until `stop` is set.

    Redis and the store may start later: an error is logged when it begins, when it changes, and when it ends. Raises
    ConfigurationError if the settings turn out to be wrong at the first check.
    """
    began, trouble = False, ""
    while True:
        try:
            issuer.keep()
        except IssuerError as error:
            if not began and isinstance(error, ConfigurationError):
                raise
            if str(error) != trouble:
                trouble = str(error)
                log.warning("%s; trying again every %g s", error, EVERY)
        else:
            if trouble:
                log.warning("all is well, keeping all tags")
            elif not began:
                log.info("keeping all tags of %s in %s", mask(settings.store_url), mask(settings.redis_url))
            trouble = ""
        began = True
        if stop.wait(EVERY):
            return
