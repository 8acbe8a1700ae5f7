"""Help with headings, for commands that have many options."""

from __future__ import annotations

from typing import Any

import click


class InSection(click.Option):
    """An option that the help shows under a heading of its own."""

    def __init__(self, *arguments: Any, section: str, **how: Any) -> None:
        super().__init__(*arguments, **how)
        self.section = section


class Sectioned(click.Command):
    """A command whose help has its options under headings; those without one come first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write them, in the order in which they were added."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                heading = param.section if isinstance(param, InSection) else "Options"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
