"""The metrics of all issuers that share a registry of prometheus_client. They are updated when they are read."""

from __future__ import annotations

import logging
import os
import platform
import struct
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import prometheus_client
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from issuer.api.aio import AsyncIssuer
from issuer.api.blocking import Issuer
from issuer.clock import monotonic, sleep
from issuer.core.events import Event
from issuer.core.sparing import Sparing
from issuer.errors import ConfigurationError, brief
from issuer.forks import living, register
from issuer.gateway.keys import PART
from issuer.instance import version
from issuer.metrics import definitions as of
from issuer.metrics.counting import begin, count
from issuer.metrics.definitions import DEFINITIONS
from issuer.metrics.families import Families, several_processes
from issuer.metrics.reading import Readings, Served, Source
from issuer.reentry import inside
from issuer.tally import Tally
from issuer_persistence.holding import acquired

#: By default, this many tags get a label of their own.
TAGS: Final = 200

#: Label for all tags that have no label of their own.
OTHER: Final = "other"

#: If several processes share metrics, each process writes its metrics to a file at least every 5 seconds.
EVERY: Final = 5.0

#: How long a fork waits for a thread that is counting an event, in seconds. A busy machine may delay this thread.
FORK_WITHIN: Final = 5.0
#: A thread that waits for the end of a fork checks again after this time, in seconds.
GIVING_WAY: Final = 0.001

#: Errors that prometheus_client raises for a metrics file that is empty, truncated or damaged.
_BROKEN: Final = (struct.error, RuntimeError, ValueError, TypeError, AttributeError)

#: Environment variable of prometheus_client with the directory of the metrics files.
FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"

AnyIssuer = Issuer | AsyncIssuer


class _Collector:
    """A collector of prometheus_client. prometheus_client calls `collect`, which returns the metrics."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self.collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()


def _of_all(folder: str) -> Iterable[Metric]:
    """Leave out files that are empty or truncated, because the disk was full or their process was killed."""
    files = [str(file) for file in Path(folder).glob("*.db")]
    found = _merged(files)
    return _merged([file for file in files if _sound(file)]) or () if found is None else found


def _sound(file: str) -> bool:
    if _merged([file]) is not None:
        return True
    if not _runs(file):  # a running process may still be creating its file
        _sparing.say(log.warning, file, "broken", "metrics: %s cannot be read, so its counts are missing", file)
    return False


def _merged(files: list[str]) -> Iterable[Metric] | None:
    """Return the merged metrics of the files. If one of the files cannot be read, return None."""
    with suppress(*_BROKEN):
        return list(MultiProcessCollector.merge(files))  # type: ignore[no-untyped-call]  # prometheus_client's
    return None


class Book:
    """The metrics of one registry of prometheus_client, and the issuers that share them."""

    def __init__(self, registry: CollectorRegistry, most: int) -> None:
        self.most = most
        self.sources: list[Source] = []
        self.served: list[Served] = []
        self._fresh_locks()
        self._registry = registry
        self._first: _Collector | None = None
        self._begin()
        _living.add(self)

    def _fresh_locks(self) -> None:
        #: `exposing` is locked while the text for /metrics is made. prometheus_client then holds a lock of its own, and
        #: no fork may happen. `lock` is locked while events are counted, and while metrics are updated.
        self.exposing, self.lock = threading.RLock(), threading.RLock()

    def _begin(self) -> None:
        self._labels: set[str] = set()
        self._read_at = monotonic()
        if several_processes():  # prometheus_client keeps the metrics in files, not in the registry
            self._families = Families(None)
            return
        # This collector has no metrics of its own. It is registered first, so it is called first, and updates all
        # metrics before the other collectors return them.
        self._first = _Collector(self._update)
        self._registry.register(self._first)
        try:
            self._families = Families(self._registry)
        except ValueError as error:
            self._registry.unregister(self._first)
            problem = f"metrics cannot be registered, because the registry already has some of these names: {error}"
            raise ConfigurationError(problem) from error

    def label(self, tag: object, known: bool) -> str:  # noqa: FBT001 - callers name it or pass a clear value
        """Return the label of a tag: its name, or `other`. A shard or series has the label of its tag.

        `known`: True if the tag exists. Other names get no label of their own, because callers can request any name.
        """
        if not isinstance(tag, str):
            return OTHER
        name = tag.partition(PART)[0]
        if name in self._labels:
            return name
        if not known or len(self._labels) >= self.most:
            return OTHER
        self._labels.add(name)
        begin(self._families, name)
        return name

    def observe(self, source: Source, event: Event) -> None:
        """Count an event of an issuer.

        A finalizer can run, and draw a number, in the middle of a call to prometheus_client. Events of such a draw are
        not counted: the count would wait for ever for a lock that the same thread already holds.
        """
        if inside("prometheus_client"):
            return
        _give_way()
        with self.lock:
            count(self._families, self.label(event.tag, source.knows(event.tag)), event)

    def read(self) -> None:
        """Update all counters and gauges from the memory of this process. No server is queried."""
        with self.lock:
            self._read_at = monotonic()
            readings = Readings()
            self.sources = [each for each in self.sources if each.read(self._families, readings, self.label)]
            for served in self.served:
                served.read(self._families, readings)
            readings.add(of.BUILD, 1, version(), platform.python_version())
            for each in DEFINITIONS:
                if each.kind == "gauge":
                    self._families.show(each, readings.values.get(each, {}))

    def _update(self) -> Iterable[Metric]:
        self.read()
        return ()

    def call_periodic(self, at_once: bool) -> None:  # noqa: FBT001 - Observers passes it by position
        """Update the metrics if `at_once` is True, or if the last update was 5 s ago.

        The issuer calls this about once a second. There are two reasons for regular updates. A rate is computed from
        two updates. And if several processes share metrics, another process shows what this process has last written.
        """
        if at_once or monotonic() - self._read_at >= EVERY:
            self.read()

    def exposition(self) -> tuple[str, bytes]:
        """Return the content type and the text for /metrics, if necessary with the metrics of all processes."""
        registry = self._registry  # when this registry is read, its collector `_first` updates the metrics
        if several_processes():
            self.read()
            registry = CollectorRegistry()
            folder = os.environ[FOLDER]
            _forget_the_dead(folder)
            registry.register(_Collector(partial(_of_all, folder)))
        _give_way()
        with self.exposing:
            return prometheus_client.CONTENT_TYPE_LATEST, prometheus_client.generate_latest(registry)

    def after_fork(self) -> None:
        """Start the counts of a forked child at 0. The parent reports the counts from before the fork."""
        self._fresh_locks()
        for each in self.sources:
            each.gauged = {}
        self.served = []
        if self._first is not None:
            self._families.withdraw()
            with suppress(KeyError):
                self._registry.unregister(self._first)
        self._begin()


class Metrics:
    """Metrics of all issuers that share one registry."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def exposition(self) -> tuple[str, bytes]:
        """Return the content type and the text for /metrics.

        If PROMETHEUS_MULTIPROC_DIR was set before prometheus_client was imported, the text covers all processes that
        share the directory. Counters of exited processes are kept. Gauges of exited processes are dropped. Values of
        other processes can be up to 5 s old. No server is queried.
        """
        return self._book.exposition()

    def serve(self, tally: Tally) -> None:
        """Add the counts of `issuer serve` in this process, such as HTTP requests, to the metrics."""
        self._book.served.append(Served(tally))

    def read(self) -> None:
        """Update the metrics. Programs that export the metrics without `exposition` must call this first."""
        self._book.read()


def install(ids: AnyIssuer, registry: CollectorRegistry | None = None, *, tags: int = TAGS) -> Metrics:
    """Count an issuer's events from now on, until the issuer is closed. Return the metrics.

    A forked child counts from 0. A second call for the same issuer does nothing.

    Args:
        ids: The issuer.
        registry: Registry of prometheus_client. None means the default registry of prometheus_client. If several
            processes share metrics, they must use the default registry.
        tags: How many tags get a label of their own, in order of first use. All other tags share the label "other".

    Raises:
        ConfigurationError: `tags` or `registry` is invalid, or PROMETHEUS_MULTIPROC_DIR is not a directory.
    """
    if type(tags) is not int or tags < 0:
        raise ConfigurationError(f"tags must be a number of labels, 0 or more, not {brief(tags)}")
    if registry is not None and not isinstance(registry, CollectorRegistry):
        raise ConfigurationError(
            f"registry must be a prometheus_client CollectorRegistry or None, not {brief(registry)}"
        )
    folder = os.environ.get(FOLDER, "")
    if several_processes() and not Path(folder).is_dir():
        raise ConfigurationError(
            f"{FOLDER} is not a directory: {brief(folder)}; create an empty directory at each start"
        )
    with _lock:
        where = REGISTRY if registry is None or several_processes() else registry
        known = _books.get(where)
        book = None if known is None else known()
        if book is None:
            book = Book(where, tags)
            _books[where] = weakref.ref(book)
        book.most = max(book.most, tags)
        with book.lock:
            if all(each.ids() is not ids for each in book.sources):
                source = Source(ids)
                book.sources.append(source)
                ids.observe(partial(book.observe, source))
                ids.engine.config.events.add_periodic(book.call_periodic)
    return Metrics(book)


def forget(process: int) -> None:
    """Remove the gauges of an exited process. Call it in a supervisor of workers, such as gunicorn's `child_exit`.

    `exposition` removes these gauges too, but not if a new process already has the id of the exited one.

    Args:
        process: Id of the process.
    """
    if several_processes():
        mark_process_dead(process, os.environ[FOLDER])  # type: ignore[no-untyped-call]  # prometheus_client's


def _forget_the_dead(folder: str) -> None:
    for file in Path(folder).glob("gauge_live*.db"):
        if not _runs(file.name):
            with suppress(FileNotFoundError):  # another thread or process has removed the file
                mark_process_dead(int(_process_of(file.name)), folder)  # type: ignore[no-untyped-call]  # prometheus_client's


def _process_of(file: str) -> str:
    return Path(file).stem.rpartition("_")[2]


def _runs(file: str) -> bool:
    """Return True if the process that created the metrics file runs, or if it is unknown whether it runs."""
    try:
        os.kill(int(_process_of(file)), 0)
    except ProcessLookupError:
        return False
    except (ValueError, PermissionError, OverflowError):
        pass  # the name has no process id, or the process belongs to another user
    return True


log = logging.getLogger("issuer.metrics")
_sparing = Sparing()
_lock = threading.Lock()
#: The book of each registry. Several issuers can share a registry, and a program can have several registries. The
#: references to the books are weak. A registry keeps its book alive, because the book's collector is registered in it.
#: If several processes share metrics, no collector is registered, and the book exists as long as its issuers.
_books: weakref.WeakKeyDictionary[CollectorRegistry, weakref.ref[Book]] = weakref.WeakKeyDictionary()


def _give_way() -> None:
    """Wait while another thread is about to fork. Call this before you take a lock of a book.

    Without this wait, a fork could get the locks too late, because locks are not fair: while three threads counted
    events without a pause, a fork waited for 0.8 s (measured). This function itself uses no lock, because a child could
    inherit a locked lock.
    """
    own, end = threading.get_ident(), monotonic() + FORK_WITHIN
    while _forking.get(os.getpid(), own) != own and monotonic() < end:
        sleep(GIVING_WAY)


def _before() -> None:
    """Take the locks of all books: a lock that another thread holds at the fork stays locked in the child."""
    _forking[os.getpid()] = threading.get_ident()
    for book in list(_living):
        for lock in (book.exposing, book.lock):
            acquired(lock, FORK_WITHIN, _held)


def _in_parent() -> None:
    while _held:
        _held.pop().release()
    _forking.pop(os.getpid(), None)


def _in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold the old lock
    _lock = threading.Lock()
    _held.clear()


#: For a process id: the id of the thread that is about to fork. A forked child has another process id than its parent,
#: so it ignores the parent's entry.
_forking: dict[int, int] = {}
_held: list[threading.Lock] = []
_living: weakref.WeakSet[Book] = living(lambda each: each.after_fork())
register(before=_before, in_parent=_in_parent, in_child=_in_child)
