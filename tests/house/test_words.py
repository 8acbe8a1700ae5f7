"""One word for one thing: what Python calls it is what the shell and HTTP call it."""

import inspect
from typing import get_type_hints

import click

from issuer import Issuer
from issuer.doors.web.routes import ROUTES
from issuer.operations.tag_options import ConfigureOptions, CreateOptions
from tests.reference import COMMANDS

#: What the shell alone has: how it asks, prints and repeats.
SHELL = {
    "after", "as_json", "as_lines", "yes", "everything", "as_number", "as_text", "count", "spare_sound", "usage", "sql",
}  # fmt: skip
#: Arguments of the shell that stand for a parameter of Python: a file is read, a text or a number is decoded.
STANDS_FOR = {"paths": "from_journal", "value": "shown"}
#: Commands without a method: they run servers, tools and demonstrations, or look things up.
TOOLS = {
    "adopt", "keeper", "serve", "token", "chaos", "config", "demo", "export", "import",
}  # fmt: skip
#: HTTP's own: how a reply looks, its pages, and a body's parameters of a path.
HTTP = {"cursor", "number", "tags"}
#: Requests about the server, not about a tag.
OF_SERVER = {"livez", "readyz", "metrics", "openapi", "docs"}


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
