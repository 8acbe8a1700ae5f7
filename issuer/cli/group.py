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
    token,
    upgrade,
    verification,
)
from issuer.cli.exits import Edge
from issuer.cli.session import Session
from issuer.terminal import color


def _tell_version(context: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's signature
    if asked:
        click.echo(f"issuer {issuer.__version__}")
        context.exit()


@click.group(
    cls=Edge,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
    Examples:
      issuer next orders                       1, then 2, ... without any server
      issuer --redis redis://localhost --store mongodb://localhost next orders

    \b
    Exit codes: 0 ok, 1 anything else, 2 usage or configuration, 3 unknown tag,
    4 a problem in the numbers' state, 5 Redis or the store can't be reached, or
    this machine's clock or number has to be waited for.

    \b
    Tab completes commands and tags after
      eval "$(issuer completion bash)"         zsh, fish: issuer completion -h
    """,
)
@click.option(
    "--redis", metavar="URL", help="redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://; none: direct."
)
@click.option("--store", metavar="URL", help="mongodb://, mongodb+srv:// or sqlite:///path.")
@click.option("--prefix", metavar="TEXT", help="What the Redis keys begin with.")
@click.option("--timeout", metavar="SECONDS", type=float, help="How long a call may wait; 0: not at all.")
@click.option("--config", metavar="FILE", type=click.Path(dir_okay=False), help="The settings file.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_tell_version, help="Show the version."
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
    """Issue unique, increasing 64-bit numbers per business tag.

    An option wins over the environment (ISSUER_REDIS_URL, ISSUER_STORE_URL, ...), that over issuer.toml, that over the
    default: an SQLite store in the user's data folder, without Redis. `issuer config` shows what holds.
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
    token.token,
    bench.bench,
    chaos.chaos,
    reference.lua,
    reference.config,
    completion.completion,
    demo.demo,
):
    main.add_command(_command)
