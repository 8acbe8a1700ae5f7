"""Adds the tokens of tinyid to a file of tokens."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from issuer.care.importing.database import ImportDatabase
from issuer.care.importing.layouts import Choice
from issuer.cli.exits import OK, PROBLEM, complain
from issuer.doors.tokens import digest_of, line_for, parsed
from issuer.terminal import numbered, say

#: Shorter tokens can be guessed.
_SHORT = 16

_READ = "SELECT token, biz_type, id FROM tiny_id_token ORDER BY id"


def add_tokens(databases: Sequence[ImportDatabase], path: str, *, dry_run: bool) -> int:
    """Add a line for each token of tinyid that the file does not have. Return the exit code.

    A token may issue numbers of its tags. The name of a token is `tinyid-` and the lowest id of its rows.
    """
    file, code = Path(path), OK
    before = file.read_bytes() if file.exists() else b""
    known = {digest: entry for entry in parsed(before, file) for digest in entry.digests}
    names = {entry.name for entry in known.values()}
    tags: dict[str, dict[str, int]] = {}
    for database in databases:
        for token, tag, number in database.rows(_READ, Choice()):
            tags.setdefault(token or "", {}).setdefault(glob.escape(tag or ""), number)
    lines = []
    for token, patterns in tags.items():
        name = f"tinyid-{min(patterns.values())}"
        entry = known.get(digest_of(token))
        if not token or "" in patterns:
            complain(f"token {name} is not added: the token or a tag is empty in the source")
            code = PROBLEM
        elif entry is not None:
            if {*patterns} - {*entry.tags}:
                complain(f"token {entry.name} is in {path} without {', '.join({*patterns} - {*entry.tags})}: add them")
                code = PROBLEM
        elif name in names:
            complain(f"token {name} is not added: {path} has another token of this name: rename that token")
            code = PROBLEM
        else:
            lines.append(line_for(token, name, ["issue"], [*patterns]) + "\n")
            if len(token) < _SHORT:
                say(f"warning: token {name} has fewer than {_SHORT} characters, so it can be guessed: replace it soon")
    text = ("\n" if before and not before.endswith(b"\n") else "") + "".join(lines)
    if lines and not dry_run:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "wb") as end:  # noqa: PTH123 - a descriptor
            end.write(text.encode())
    say(f"{'would add' if dry_run else 'added'} {numbered(len(lines), 'token')} to {path}")
    return code
