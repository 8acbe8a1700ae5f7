"""A command of the command line is one new file: CONTRIBUTING says so, and here one is added."""

from pathlib import Path

import pytest

from tests.house.packaging.scratch import Scratch

pytestmark = pytest.mark.live

COMMAND = '''"""`issuer say-hello`."""

import click

from issuer.terminal import show

SECTION = "Tools"


@click.command(
    short_help="Greet a person.",
    epilog="""\\b
    Examples:
      issuer say-hello Ada
      issuer say-hello Bob
    """,
)
@click.argument("name")
def say_hello(name: str) -> None:
    """Greet NAME."""
    show(f"Hello, {name}.")
'''


def test_a_command_is_one_file(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "copy")
    (scratch.folder / "issuer/cli/commands/say_hello.py").write_text(COMMAND, encoding="utf-8")
    assert scratch.run("-m", "issuer", "say-hello", "Ada") == "Hello, Ada.\n"
    assert "  say-hello  Greet a person.\n" in scratch.run("-m", "issuer", "--help")
    scratch.check("tests/house/test_reference.py")
    page = (scratch.folder / "docs/reference/command-line.md").read_text(encoding="utf-8")
    assert "### issuer say-hello\n" in page
