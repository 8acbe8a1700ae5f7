"""`manage.py issuer`: the command line of the issuer, with the project's settings."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS

from issuer.contrib.django.issuers import environment


class Command(BaseCommand):
    """Runs the command line. The settings are passed as environment variables."""

    help = "Run a command of the issuer, as in: manage.py issuer next orders. All commands: manage.py issuer -- --help"
    requires_system_checks = ()  # so that tags can be looked at while a setting is wrong
    from_shell = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command for `manage.py`."""
        self.from_shell = True
        super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Define the arguments."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="Alias of the database whose issuer is used.")
        parser.add_argument("arguments", nargs=REMAINDER, help="Command of the issuer, with its options.")

    def handle(self, *, database: str, arguments: list[str], **_: Any) -> None:
        """Run the command: in place of `manage.py`, so that signals reach it; or in a process of its own.

        Raises:
            CommandError: The process has failed.
        """
        command, variables = [sys.executable, "-m", "issuer", *arguments], environment(database)
        if self.from_shell:
            sys.stdout.flush()
            os.execve(sys.executable, command, variables)  # noqa: S606 - no shell is needed
        done = subprocess.run(command, env=variables, check=False)  # noqa: S603 - a command of ours
        if done.returncode:
            raise CommandError(f"issuer {' '.join(arguments)}: failed", returncode=done.returncode)
