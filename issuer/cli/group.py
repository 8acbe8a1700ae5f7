"""`issuer`: the group, its options, and what holds for every command."""

from __future__ import annotations

import sys

import click

import issuer
from issuer.cli import (
    bench,
    chaos,
    completion,
    demo,
    doctor,
    keeper,
    machines,
    numbers,
    recovery,
    reference,
    serve,
    tags,
    tokens,
    upgrade,
    verification,
)
from issuer.cli.exits import MEANINGS, Edge
from issuer.cli.session import Session
from issuer.terminal import color


def _tell_version(context: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's signature
    if asked:
        click.echo(f"issuer {issuer.__version__}")
        context.exit()


_EXIT_CODES = "\n    ".join(f"  {code:<3}  {meaning}" for code, meaning in MEANINGS.items())


@click.group(
    cls=Edge,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog=f"""\b
    Examples:
      issuer next orders                     # 1, then 2, ...: needs no server
      issuer --redis redis://localhost --store mongodb://localhost next orders
      issuer completion bash >> ~/.bashrc    # Tab completes commands and tags

    \b
    Exit codes:
    {_EXIT_CODES}
    """,
)
@click.option(
    "--redis",
    metavar="URL",
    help="Redis server: redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://, or the word none to work "
    "without Redis.",
)
@click.option("--store", metavar="URL", help="Store: mongodb://, mongodb+srv:// or sqlite:///path.")
@click.option("--prefix", metavar="TEXT", help="First part of all Redis keys. Default: issuer.")
@click.option(
    "--timeout", metavar="SECONDS", type=float, help="Longest wait of a call. 0 means: do not wait. Default: 5."
)
@click.option("--config", metavar="FILE", type=click.Path(dir_okay=False), help="Settings file, in TOML.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(
    context: click.Context,
    *,
    redis: str | None,
    store: str | None,
    prefix: str | None,
    timeout: float | None,
    config: str | None,
) -> None:
    """Issue unique, increasing 64-bit numbers for each tag.

    Each setting comes from the first of these sources that contains it: an option, an environment variable
    (ISSUER_REDIS_URL, ISSUER_STORE_URL, ...), issuer.toml, the default. By default, the store is an SQLite file in the
    user's data folder, and there is no Redis. `issuer config` shows each setting and its source.
    """
    context.color = color()
    context.obj = Session(redis, store, prefix, timeout, config)
    for stream in (sys.stdout, sys.stderr):
        # A tag may have letters that this terminal's encoding lacks: better a `?` than no answer.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # typed as TextIO, which lacks it


for _command in (
    numbers.next,
    numbers.peek,
    numbers.decode,
    tags.tags,
    tags.show,
    tags.create,
    tags.set,
    tags.delete,
    verification.verify,
    verification.who,
    recovery.halt,
    recovery.recover,
    machines.machines,
    doctor.doctor,
    upgrade.upgrade,
    keeper.keeper,
    serve.serve,
    tokens.token,
    bench.bench,
    chaos.chaos,
    reference.lua,
    reference.config,
    completion.completion,
    demo.demo,
):
    main.add_command(_command)
