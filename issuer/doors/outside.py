"""Errors as callers of a server see them: without addresses and paths of the servers behind it, which its log has."""

from __future__ import annotations

import logging
from copy import copy
from typing import Final

from issuer.core.sparing import Sparing
from issuer.errors import (
    ConfigurationError,
    FenceError,
    IssuerError,
    JournalDamaged,
    RedisUnavailable,
    StoreUnavailable,
    UnknownTag,
)

log = logging.getLogger("issuer.doors")

#: Errors with addresses or paths in their message, and what callers read in place of the message.
_SHOWN: Final[dict[type[IssuerError], str]] = {
    StoreUnavailable: "the store did not answer in time, or did not reserve numbers",
    RedisUnavailable: "Redis did not answer in time",
    JournalDamaged: "a journal of this server is damaged",
}
#: The same for errors of which only some have an address: their message begins with one of these texts.
_OF_SERVERS: Final = ("redis ", "store: ")
_UNUSABLE: Final = "this server cannot use Redis or its store as they are configured"
_sparing = Sparing()


def outside(error: IssuerError) -> IssuerError:
    """Return the error as a caller may see it. If its message is hidden, log it, at most once a minute."""
    text = next((text for kind, text in _SHOWN.items() if isinstance(error, kind)), None)
    if isinstance(error, ConfigurationError | FenceError) and str(error.args[0]).startswith(_OF_SERVERS):
        text = _UNUSABLE
    if text is None and not isinstance(error, UnknownTag):
        return error
    shown = copy(error)
    for name in ("store", "path"):
        vars(shown).pop(name, None)
    if text is not None:
        _sparing.say(log.warning, error.code, text, "a call of a client failed: %s", error)
        shown.args = (f"{text}: the log of the server has the reason",)
    return shown
