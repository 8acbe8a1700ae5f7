"""A WSGI program that has used everything at import, before uWSGI forks its workers. /KIND?N answers N numbers."""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import issuer

STORE = os.environ["APP_STORE"]
FROM_REDIS = issuer.connect(redis=os.environ["APP_REDIS"], store=STORE, lease=300)
DIRECT = issuer.connect(redis="none", store=STORE)
ISSUERS = {"strict": FROM_REDIS, "leased": FROM_REDIS, "snowflake": FROM_REDIS, "direct": DIRECT}
AT_IMPORT = {kind: [ids.next(kind) for _ in range(5)] for kind, ids in ISSUERS.items()}
OWN = {os.getpid(): AT_IMPORT}


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    kind, n = environ["PATH_INFO"].strip("/"), int(environ["QUERY_STRING"])
    numbers = [ISSUERS[kind].next(kind) for _ in range(n)]
    at_import = OWN.pop(os.getpid(), {})  # told once, by the process that drew them or by none
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([os.getpid(), numbers, at_import]).encode()]
