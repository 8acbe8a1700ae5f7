"""`issuer keeper`."""

from __future__ import annotations

import logging
import signal
import threading
from types import FrameType

import click

from issuer.cli.session import Session
from issuer.core.events import Event, SegmentLoaded, line_of
from issuer.doors.server.watch import EVERY, Watch
from issuer.errors import ConfigurationError, Unavailable
from issuer.terminal import say
from issuer.times import utc
from issuer.views import message_of
from issuer_persistence.records import now_ms
from issuer_persistence.urls import mask

SECTION = "Servers"


@click.command(
    short_help="Load segments into Redis for all tags (a daemon).",
    epilog="""\b
    Examples:
      issuer --redis redis://localhost --store mongodb://localhost keeper
      issuer --config /etc/issuer.toml keeper
    """,
)
@click.pass_obj
def keeper(session: Session) -> None:
    """Load the next segment of every tag into Redis before the current one is used up.

    Run it as a daemon if there are clients that draw from Redis without this library. It runs until SIGTERM or Ctrl-C.
    It writes a line to stderr for each segment. If Redis or the store is unavailable, the keeper tries again until it
    is available, also at the start. Several keepers may run at the same time.
    """
    settings = session.settings()
    if settings.redis_url == "none":
        raise ConfigurationError(
            "a keeper loads segments into Redis, and no Redis is configured: give --redis and --store"
        )
    logger = logging.getLogger("issuer")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.addHandler(_Warnings())
    stop = threading.Event()

    def stopped(number: int, _frame: FrameType | None) -> None:
        # Restore the default handler, so that a second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    issuer = session.connect(scheduler="background", makes_store=True)
    issuer.observe(_tell_segment)
    watch = Watch(issuer, _tell)
    where = f"{mask(settings.store_url)} in {mask(settings.redis_url)}"
    try:
        watch.look()
    except Unavailable as error:
        # Redis or the store may start after the keeper, so the keeper waits for them. Other errors end the keeper.
        watch.trouble(error)
    else:
        _tell(f"keeping all tags of {where}")
    while not stop.wait(EVERY):
        watch.again()
    _tell("stopping")
    issuer.close()
    _tell("stopped")


def _tell(message: str) -> None:
    say(f"{utc(now_ms())} {message}")


def _tell_segment(event: Event) -> None:
    """Write a line for each loaded segment, with the same text as in the log. Other events are ignored."""
    line = line_of(event) if isinstance(event, SegmentLoaded) else None
    if line is not None:
        _tell(line[1] % line[2])


class _Warnings(logging.Handler):
    """Writes all warnings of the library to stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        _tell(message_of(record))
