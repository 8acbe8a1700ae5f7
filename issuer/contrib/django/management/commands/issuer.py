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
        """Run the command for `manage.py`, or for a program that passes other arguments than its own."""
        self.from_shell = argv == sys.argv
        super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Define the arguments."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="Alias of the database whose issuer is used.")
        parser.add_argument("arguments", nargs=REMAINDER, help="Command of the issuer, with its options.")

    def handle(self, *, database: str, arguments: list[str], **_: Any) -> None:
        """Run the command: in place of `manage.py`, so that signals reach it.

        For a program or a test, such as `call_command("issuer", "tags")`, run it in a process of its own, which cannot
        ask questions. What it prints is written to the streams of this command at its end.

        Raises:
            CommandError: The process has failed.
        """
        command, variables = [sys.executable, "-m", "issuer", *arguments], environment(database)
        if self.from_shell:
            sys.stdout.flush()
            os.execve(sys.executable, command, variables)  # noqa: S606 - no shell is needed
        done = subprocess.run(  # noqa: S603 - a command of ours
            command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        self.stdout.write(done.stdout, ending="")
        if done.returncode:
            failure = f"issuer {' '.join(arguments)}: failed. {done.stderr}"
            raise CommandError(failure.rstrip(), returncode=done.returncode)
        self.stderr.write(done.stderr, ending="")
