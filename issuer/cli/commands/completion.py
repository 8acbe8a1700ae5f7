"""`issuer completion`."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from issuer.terminal import show

SECTION = "Tools"

SHELLS = ("bash", "zsh", "fish")


@click.command(
    short_help="Print the script that enables Tab completion.",
    epilog="""\b
    Examples:
      issuer completion bash >> ~/.bashrc
      issuer completion zsh >> ~/.zshrc
      issuer completion fish > ~/.config/fish/completions/issuer.fish
    """,
)
@click.argument("shell", metavar="[bash|zsh|fish]", type=click.Choice(SHELLS), required=False)
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print a script for your shell. With it, the Tab key completes commands, options and tags.

    SHELL is bash, zsh or fish. Default: the shell in the variable $SHELL.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    kind = get_completion_class(name) if name in SHELLS else None
    if kind is None:
        raise click.UsageError(f"give the name of a shell: {', '.join(SHELLS)}", ctx=context)
    show(kind(context.find_root().command, {}, "issuer", "_ISSUER_COMPLETE").source())
