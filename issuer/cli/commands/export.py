"""`issuer export`."""

from __future__ import annotations

import sys

import click

from issuer.cli import tag_files
from issuer.cli.session import Session

SECTION = "Tags"


@click.command(
    short_help="Write all tags as a file for `issuer import`.",
    epilog="""\b
    Examples:
      issuer export > tags.csv
      issuer export --json-lines > tags.jsonl
      issuer export | issuer --store sqlite:///new.db import --from -
    """,
)
@click.option("--json-lines", is_flag=True, help="Write JSON lines, not CSV.")
@click.pass_obj
def export(session: Session, *, json_lines: bool) -> int:
    """Write the settings of all tags to stdout, a line for each tag, sorted by name.

    A tag that is created from its line begins after all numbers that this store has reserved for it. So issue numbers
    from one of the two stores only. Some tags cannot be continued in this way: tags with periods, with scrambled
    numbers, with shards or keyed tags, once they have issued numbers. They are left out, as are tags with a damaged
    record, and the exit code is 4.
    """
    return tag_files.export(session.connect(), sys.stdout.buffer.write, as_json=json_lines)
