"""Cursors: where a page ended, as clients carry it to the next request."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NoBase64
from typing import Any

from issuer.errors import InvalidArgument


def cursor(place: Any) -> str:
    """Return the cursor of a place."""
    return urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place(cursor: str) -> Any:
    """Return the place. InvalidArgument if that is no cursor."""
    try:
        return json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (NoBase64, UnicodeError, ValueError, RecursionError) as error:
        raise InvalidArgument("must be the `next` of a page", value=cursor, argument="cursor") from error
