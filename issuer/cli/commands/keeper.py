"""`issuer keeper`."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import click

from issuer.cli.session import Session
from issuer.core.events import Event, SegmentLoaded, line_of
from issuer.doors.server import logs
from issuer.doors.server.watch import keep
from issuer.errors import ConfigurationError

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
    logs.begin("text", verbose=False)
    stop = threading.Event()

    def stopped(number: int, _frame: FrameType | None) -> None:
        # Restore the default handler, so that a second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stopped)
    issuer = session.connect(scheduler="background", makes_store=True)
    issuer.observe(_log_segment)
    keep(issuer, settings, stop)
    logs.log.info("stopping")
    issuer.close()
    logs.log.info("stopped")


def _log_segment(event: Event) -> None:
    if isinstance(event, SegmentLoaded) and (line := line_of(event)) is not None:
        logs.log.info(line[1], *line[2])
