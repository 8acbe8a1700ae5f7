"""A WSGI program that has used everything at import, before uWSGI forks its workers. /KIND?N answers N numbers."""

import json
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import issuer

STORE = os.environ["APP_STORE"]
FROM_REDIS = issuer.connect(redis=os.environ["APP_REDIS"], store=STORE, lease=300)
DIRECT = issuer.connect(redis="none", store=STORE)
ISSUERS = {"strict": FROM_REDIS, "leased": FROM_REDIS, "snowflake": FROM_REDIS, "direct": DIRECT}
AT_IMPORT = {kind: [ids.next(kind) for _ in range(5)] for kind, ids in ISSUERS.items()}
OWN = {os.getpid(): AT_IMPORT}


def hearing() -> list[str]:
    """The threads of ours that a SIGTERM may hit; under uWSGI it ends the interpreter there."""
    found = []
    for each in threading.enumerate():
        status = Path(f"/proc/self/task/{each.native_id}/status")
        if each.name.startswith(("issuer", "APScheduler")) and status.exists():
            blocked = re.search(r"SigBlk:\s*(\w+)", status.read_text())
            found += [each.name] if blocked and not int(blocked[1], 16) >> signal.SIGTERM - 1 & 1 else []
    return found


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    kind, n = environ["PATH_INFO"].strip("/"), int(environ["QUERY_STRING"])
    numbers = [ISSUERS[kind].next(kind) for _ in range(n)]
    at_import = OWN.pop(os.getpid(), {})  # told once, by the process that drew them or by none
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([os.getpid(), numbers, at_import, hearing()]).encode()]
