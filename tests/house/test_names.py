"""The names that `issuer` offers, and that they are those of the shell and of HTTP."""

import asyncio
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

import click
import pytest

import issuer
from issuer import Issuer
from issuer.doors.web.routes import ROUTES
from issuer.operations.tag_options import ConfigureOptions, CreateOptions
from tests.reference import COMMANDS
from tests.refusals import refused

#: What the module offers of the default issuer's methods.
FUNCTIONS = ("next", "take", "issue", "peek", "decode", "reserve", "stream")


def test_what_is_public_is_there_and_next_is_not_exported_by_a_star_import() -> None:
    assert "next" not in issuer.__all__
    assert all(hasattr(issuer, name) for name in issuer.__all__)
    assert {*FUNCTIONS, "Unavailable", "__version__"} - {"next"} <= {*issuer.__all__}
    assert re.fullmatch(r"0\.1\.0(\+g[0-9a-f]{9}(\.changed)?)?", issuer.__version__)
    assert issuer.__version__ is issuer.__version__, "in a checkout, each look runs git"
    assert all(issubclass(each, issuer.Unavailable) for each in (issuer.StoreUnavailable, issuer.RedisUnavailable))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        issuer.nonsense  # type: ignore[attr-defined]  # noqa: B018 - its look-up is what is tried


def test_a_method_of_an_issuer_is_named_to_those_who_look_for_it_in_the_module() -> None:
    for name in ("create", "recover", "tags"):
        assert hasattr(Issuer, name)
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': use issuer.default\(\).{name}$"):
            getattr(issuer, name)


#: Prints what is loaded at four moments; the last program is one that reads every public name.
LOADED = """
import json, sys
import issuer

def loaded():
    return sorted(sys.modules)

seen, known = [loaded()], set(sys.modules)
assert {*issuer.__all__, "next", "plugins", "strategies"} <= {*dir(issuer)}
seen.append(loaded())
issuer.connect(redis="redis://127.0.0.1:1", store="memory://", scheduler=None).close()
seen.append(loaded())
from issuer import *
assert issuer.Issuer is Issuer and issuer.plugins.Plugin and issuer.strategies.Strategy
seen.append(loaded())
print(json.dumps(seen))
"""


def test_an_import_loads_no_driver_and_a_blocking_program_loads_no_asyncio_face() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    imported, listed, connected, all_of_it = map(set, json.loads(done.stdout))
    slow = {"redis", "apscheduler", "pymongo", "asyncio", "importlib.metadata", "issuer.drivers"}
    assert imported & slow == set()
    assert listed == imported
    asynchronous = {"issuer.api.aio", "issuer.engine.aio", "issuer.drivers.aio.connections"}
    assert connected & {"redis", "issuer.api.blocking", *asynchronous} == {"redis", "issuer.api.blocking"}
    assert asynchronous <= all_of_it


def test_what_is_imported_late_is_the_class_itself() -> None:
    for name in ("Issuer", "AsyncIssuer"):
        kind = getattr(issuer, name)
        assert getattr(sys.modules[kind.__module__], name) is kind  # as pickle looks it up


def test_a_function_of_the_module_takes_what_the_method_takes() -> None:
    for name in FUNCTIONS:
        function, method = getattr(issuer, name), getattr(Issuer, name)
        ours = inspect.signature(function).parameters.values()
        theirs = list(inspect.signature(method).parameters.values())[1:]
        said = [[(one.name, one.default, one.annotation) for one in each] for each in (ours, theirs)]
        assert said[0] == said[1], name
        assert {one.kind for one in ours if one.default is not one.empty} <= {inspect.Parameter.KEYWORD_ONLY}, name
        assert inspect.signature(function).return_annotation == inspect.signature(method).return_annotation, name
        assert f"see Issuer.{name}." in (inspect.getdoc(function) or "")


@pytest.fixture
def default() -> Iterator[Issuer]:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids, issuer.set_default(ids):
        yield ids


def test_the_functions_of_the_module_are_the_default_issuer_s(default: Issuer) -> None:
    default.create("a", format="A{seq:04d}")
    assert issuer.peek("a").text == "A0001"
    assert issuer.next("a", timeout=60) == 1
    assert str(issuer.issue("a")) == "A0002"
    assert issuer.take("a", 2) == [3, 4]
    assert issuer.decode("a", "A0002").counter == issuer.decode("a", 2, holder=True).counter == 2
    assert next(issuer.stream("a", timeout=60)) == 5
    assert issuer.reserve("a", 3) == range(1001, 1004)
    default.create("s", shards=True)
    default.create("k", keyed=True, format="{key}/{seq}")
    shard = issuer.decode("s", issuer.next("s", shard_key="alice@example.com")).shard
    assert issuer.issue("s", shard_key="alice@example.com").shard == shard == 41
    assert issuer.peek("s", shard_key="alice@example.com").counter == 3
    assert str(issuer.issue("k", restart_key="acme")) == "acme/1"
    assert str(issuer.peek("k", restart_key="acme")) == "acme/2"
    for call in (issuer.next, issuer.issue):
        refused(issuer.ConfigurationError, "Redis", call, "a", key="order-778")
        refused(issuer.InvalidArgument, "ttl must be", call, "a", key="order-778", ttl=0)


@pytest.mark.parametrize("n", [1, 3, 0, 2.5, True])
def test_next_with_a_number_of_numbers_is_refused_and_draws_nothing(n: Any, default: Issuer) -> None:
    async def awaited() -> None:
        async with issuer.aconnect(redis="none", store="memory://", scheduler=None) as ids:
            await ids.create("t")
            with pytest.raises(issuer.InvalidArgument, match=r"take\(tag, n\)"):
                await ids.next("t", n)
            assert await ids.next("t", None, 5.0) == 1

    asyncio.run(awaited())
    default.create("t")
    refused(issuer.InvalidArgument, r"take\(tag, n\)", default.next, "t", n)
    assert default.next("t", None, 5.0) == 1


#: What the shell alone has: how it asks, prints and repeats.
SHELL = {
    "after", "as_json", "as_lines", "yes", "everything", "as_number", "as_text", "count", "spare_sound", "usage", "sql",
}  # fmt: skip
#: Arguments of the shell that stand for a parameter of Python: a file is read, a text or a number is decoded.
STANDS_FOR = {"paths": "from_journal", "value": "shown"}
#: Commands without a method: they run servers, tools and demonstrations, or look things up.
TOOLS = {
    "adopt", "keeper", "serve", "token", "chaos", "config", "console", "demo", "export", "import", "top",
}  # fmt: skip
#: HTTP's own: how a reply looks, its pages, and a body's parameters of a path.
HTTP = {"cursor", "number", "tags"}
#: Requests about the server, not about a tag.
OF_SERVER = {"livez", "readyz", "metrics", "openapi", "docs", "redis", "store"}


def parameters(name: str) -> set[str]:
    """Return the parameters of a method, those of `next` with those of `issue`: the edges print both."""
    names = {name, "issue"} if name == "next" else {name}
    found = {each for one in names for each in inspect.signature(getattr(Issuer, one)).parameters}
    options = {"create": CreateOptions, "configure": ConfigureOptions}.get(name, dict)
    return found - {"self", "options"} | {*get_type_hints(options)}


def test_a_command_is_a_method_and_its_options_are_its_parameters() -> None:
    assert {*COMMANDS} >= TOOLS
    for name, command in COMMANDS.items():
        if name in TOOLS:
            continue
        method = parameters(name.replace("-", "_"))
        given = {str(each.name) for each in command.params} - SHELL
        if name == "machines":
            given -= {"set_aside"}  # a method of its own
        if name == "who":
            given = given - {"value"} | {"number"}  # a text, too: it is decoded first
        assert {STANDS_FOR.get(each, each) for each in given} <= method, name


def test_an_option_has_the_name_of_its_parameter_once_for_each_value() -> None:
    for command in (COMMANDS["create"], COMMANDS["configure"]):
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in SHELL:
                name = f"--{str(option.name).replace('_', '-')}"
                assert option.opts == [name.removesuffix("s") if name == "--options" else name]


def test_an_operation_of_http_is_a_method_and_its_fields_are_its_parameters() -> None:
    for route in ROUTES:
        if route.name not in OF_SERVER:
            fields = {*route.query, *(route.body.known if route.body else ())} - HTTP
            assert fields <= parameters(route.name) | ({"count"} if route.name == "tags" else set()), route.name
