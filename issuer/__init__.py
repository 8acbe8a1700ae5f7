"""Segment issuer: unique, increasing, short 64-bit numbers for named tags.

    import issuer
    issuer.next("orders")

`connect` creates an Issuer, the blocking interface. `aconnect` creates an AsyncIssuer, the asyncio interface. The
functions `next`, `take`, `issue`, `peek`, `decode`, `stream` and `reserve` use the default Issuer, which is created
from the settings, or is the one that `set_default` was given.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    warnings.warn(
        "issuer is not tested on a free-threaded Python whose GIL is disabled: set PYTHON_GIL=1 to enable the GIL",
        RuntimeWarning,
        stacklevel=2,
    )

from issuer.core import events
from issuer.defaults import adefault, close_adefault, close_default, default, set_adefault, set_default
from issuer.errors import (
    CalledWithin,
    ClockBehind,
    ConfigurationError,
    CorruptState,
    FenceError,
    Forbidden,
    ForeignHash,
    FormatOverflow,
    InvalidArgument,
    IssuerError,
    JournalDamaged,
    LimitReached,
    NoMachineNumber,
    NotDecodable,
    RedisUnavailable,
    Refused,
    SchemeError,
    StoreBehind,
    StoreFull,
    StoreUnavailable,
    StrategyFailed,
    TagDiffers,
    TagExists,
    TooManyRequests,
    TransformFailed,
    Unauthenticated,
    Unavailable,
    UnknownTag,
)
from issuer.forks import no_fork
from issuer.functions import decode, issue, peek, reserve, stream, take
from issuer.functions import next as next

if TYPE_CHECKING:
    from issuer import values as values
    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer
    from issuer.wiring import aconnect, connect

# `next` is left out: after `from issuer import *` it would replace the builtin function.
__all__ = [
    "AsyncIssuer",
    "CalledWithin",
    "ClockBehind",
    "ConfigurationError",
    "CorruptState",
    "FenceError",
    "Forbidden",
    "ForeignHash",
    "FormatOverflow",
    "InvalidArgument",
    "Issuer",
    "IssuerError",
    "JournalDamaged",
    "LimitReached",
    "NoMachineNumber",
    "NotDecodable",
    "RedisUnavailable",
    "Refused",
    "SchemeError",
    "StoreBehind",
    "StoreFull",
    "StoreUnavailable",
    "StrategyFailed",
    "TagDiffers",
    "TagExists",
    "TooManyRequests",
    "TransformFailed",
    "Unauthenticated",
    "Unavailable",
    "UnknownTag",
    "__version__",
    "aconnect",
    "adefault",
    "close_adefault",
    "close_default",
    "connect",
    "decode",
    "default",
    "events",
    "issue",
    "peek",
    "reserve",
    "set_adefault",
    "set_default",
    "stream",
    "take",
]


__version__: str

#: Names of this package that are imported at their first use, with their modules. These modules import redis-py and
#: APScheduler, which take 2/3 of the import time.
_LATER = {
    "AsyncIssuer": "issuer.api.aio",
    "Issuer": "issuer.api.blocking",
    "aconnect": "issuer.wiring",
    "connect": "issuer.wiring",
}
_PACKAGES = ("plugins", "strategies", "testing", "values")
#: Methods of Issuer that are not functions of this module.
_METHODS = (
    *("create", "create_many", "configure", "delete", "tags", "inspect", "warm", "keep", "tick", "verify", "who"),
    *("halt", "recover", "ready", "doctor", "upgrade", "close"),
)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path
    from runpy import run_path

    in_checkout = Path(__file__).resolve().parents[1] / "hatch_version.py"
    if in_checkout.is_file():  # not from the metadata: in an editable install, they have the version of an older commit
        return str(run_path(str(in_checkout))["version"]())
    try:
        return version("segment-issuer")
    except PackageNotFoundError:  # the folder was copied, not installed
        return "unknown"


def _later(name: str) -> Any:
    with no_fork():
        found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found


if not TYPE_CHECKING:  # hidden from mypy, which would otherwise accept unknown names

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return _later(name)
        if name in _PACKAGES:
            with no_fork():
                return import_module(f"issuer.{name}")
        if name == "__version__":
            return globals().setdefault(name, _version())  # in a checkout, git is run: once a process
        hint = f": use issuer.default().{name}" if name in _METHODS else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
