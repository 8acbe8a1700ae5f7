"""`manage.py issuer`: the command line of the issuer, with the project's settings."""

from __future__ import annotations

import subprocess
import sys
from argparse import REMAINDER, ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS

from issuer.contrib.django.issuers import environment


class Command(BaseCommand):
    """Runs the command line in a process of its own. The settings are passed as environment variables."""

    help = "Run a command of the issuer, as in: manage.py issuer next orders. All commands: manage.py issuer -- --help"
    requires_system_checks = ()  # so that tags can be looked at while a setting is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Define the arguments."""
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="Alias of the database whose issuer is used.")
        parser.add_argument("arguments", nargs=REMAINDER, help="Command of the issuer, with its options.")

    def handle(self, *, database: str, arguments: list[str], **_: Any) -> None:
        """Run the command. The exit status is that of the command."""
        command = [sys.executable, "-m", "issuer", *arguments]
        done = subprocess.run(command, env=environment(database), check=False)  # noqa: S603 - ours
        if done.returncode:
            sys.exit(done.returncode)
