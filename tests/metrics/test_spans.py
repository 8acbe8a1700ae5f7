"""Spans of the cold path: what is called, as what, and what never stands in one; nothing without OpenTelemetry."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv.attributes import db_attributes, error_attributes

import issuer
from issuer.core.steps import Masters
from issuer.drivers import spans
from issuer.gateway.commands import NAMES
from issuer_persistence.contract import Store
from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, Connect
from tests.refusals import refused
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SECRET = 7_654_321


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """A program that traces, for one test: the API takes a provider once a process."""
    made, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield made
    provider.shutdown()


def operations(exporter: InMemorySpanExporter) -> list[str]:
    return [span.name for span in exporter.get_finished_spans()]


def text_of(span: ReadableSpan) -> str:
    events = [(event.name, dict(event.attributes or {})) for event in span.events]
    return f"{span.name} {dict(span.attributes or {})} {span.status.description} {events}"


@pytest.mark.live
@pytest.mark.usefixtures("patient")
@pytest.mark.colours(*COLOURS)
def test_calls_of_redis_and_the_store_are_spans_by_the_conventions(
    connect: Connect, redis_url: str, tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    with connect(redis=redis_url, store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=None) as ids:
        ids.create("a", start=SECRET, step=100)
        assert ids.next("a") == SECRET
        calls = {"create_many", "get", "reserve", "EVALSHA open", "EVALSHA load", "EVALSHA next"}
        assert calls <= set(operations(exporter))
        warm = len(operations(exporter))
        for _ in range(10):
            ids.next("a")
        assert len(operations(exporter)) == warm, "a draw of the short way is no span"
        ids.verify()
        ids.inspect("a")
        refused(issuer.UnknownTag, "", ids.inspect, "nobody")
    for span in exporter.get_finished_spans():
        attributes = dict(span.attributes or {})
        assert span.kind is trace.SpanKind.CLIENT
        assert attributes[db_attributes.DB_SYSTEM_NAME] in ("redis", "sqlite")
        operation = attributes[db_attributes.DB_OPERATION_NAME]
        script = attributes.get(db_attributes.DB_STORED_PROCEDURE_NAME)
        if attributes[db_attributes.DB_SYSTEM_NAME] == "sqlite":
            assert hasattr(Store, str(operation)), operation
        assert script is None or script in NAMES
        assert span.name == (operation if script is None else f"{operation} {script}")
        assert str(SECRET)[:5] not in text_of(span)
        assert attributes.get("issuer.tag", "a") in ("a", "nobody")


@pytest.mark.colours(*COLOURS)
def test_an_error_is_said_by_its_kind_and_not_by_its_text(connect: Connect, exporter: InMemorySpanExporter) -> None:
    with connect(redis="redis://127.0.0.1:1", store="memory://", redis_timeout=0.1) as ids:
        ids.create("a", start=SECRET, step=10)

        def in_vain() -> None:
            exporter.clear()
            ids.next("a", timeout=0.2)

        with pytest.raises(issuer.RedisUnavailable):  # in so little time, the store may not have been asked either
            until(in_vain, ignoring=(issuer.StoreUnavailable,))
    failed = [span for span in exporter.get_finished_spans() if span.status.status_code is trace.StatusCode.ERROR]
    assert failed
    for span in failed:
        assert (span.attributes or {})[error_attributes.ERROR_TYPE] == "redis_unavailable"
        assert not span.status.description
        assert not span.events
        assert "127.0.0.1" not in text_of(span)


@pytest.mark.colours(*COLOURS)
def test_a_span_lies_within_the_callers_and_a_part_is_called_as_its_tag(
    connect: Connect, exporter: InMemorySpanExporter
) -> None:
    with connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("bills", order="trend", keyed=True, format="{key}-{seq}")
        ids.issue("bills", restart_key="anna@example.org")
    found = exporter.get_finished_spans()
    assert {(span.attributes or {}).get("issuer.tag") for span in found} <= {"bills", None}
    assert not [span for span in found if "anna" in text_of(span)]


def test_the_store_is_asked_within_the_span_of_the_caller(exporter: InMemorySpanExporter) -> None:
    tracer = trace.get_tracer_provider().get_tracer("of the program")
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("a", order="trend")
        exporter.clear()
        with tracer.start_as_current_span("order") as mine:
            ids.next("a")
    inner = [span for span in exporter.get_finished_spans() if span.name == "reserve"]
    assert inner
    assert all(span.parent is not None and span.parent.span_id == mine.get_span_context().span_id for span in inner)


def test_without_a_provider_no_span_is_made_and_nothing_is_entered() -> None:
    """redis-py loads the API for itself, where it is installed: that alone is no wish to trace."""
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    nothing = spans.around(Masters(), "a")
    assert nothing is spans.around(Masters(), None, MemoryStore())


def test_where_it_is_not_installed_numbers_come_all_the_same_and_no_import_is_tried() -> None:
    program = """
import sys

class Refusing:
    tried = []
    def find_spec(self, name, path=None, target=None):
        if name.startswith("opentelemetry"):
            self.tried.append(name)
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refusing())
import issuer
with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
    before = len(Refusing.tried)  # redis-py tries it when it is imported
    ids.create("a", order="trend")
    assert ids.take("a", 5000)[-1] == 5000
print(len(Refusing.tried) - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    imports = re.compile(r"^\s*(?:import|from) (?:opentelemetry)", re.MULTILINE)
    sources = [each.read_text(encoding="utf-8") for each in (ROOT / "issuer").rglob("*.py")]
    assert not [text for text in sources if imports.search(text)]


@pytest.mark.live
def test_spans_of_plain_commands_are_named_after_them(redis_url: str, exporter: InMemorySpanExporter) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        ids.doctor()
    plain = [name for name in operations(exporter) if not name.startswith("EVALSHA")]
    assert "INFO" in plain
    assert all(re.fullmatch(r"[A-Za-z_]+( masters)?", name) for name in plain), plain
