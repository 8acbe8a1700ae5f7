"""How many functions of ours the first call in a process enters, with Redis and MongoDB: docs/explain/figures.md.

`.venv/bin/pytest -rP tests/integration/test_first_calls.py` prints them.
"""

import json
import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import issuer
from tests.programs import REPOSITORY

FIGURES = (Path(issuer.__file__).resolve().parents[1] / "docs/explain/figures.md").read_text(encoding="utf-8")
#: What a call may take more or less than is listed: a wait that has to look twice, a callback that comes early or late.
SLACK = 5


@pytest.mark.parametrize(
    ("row", "call"),
    [
        ("`next` of a tag", "next"),
        ("the draw that reaches the threshold, and its segment", "segment"),
        ("`create`", "create"),
        ("`issuer recover` of a tag in the shell", "issuer recover"),
    ],
)
def test_a_first_call_enters_no_more_functions_than_docs_figures_says(
    row: str, call: str, redis_url: str, mongo_url: str
) -> None:
    server, question, options = mongo_url.partition("?")
    store = f"{server.rstrip('/')}/calls{uuid.uuid4().hex[:12]}{question}{options}"
    with issuer.connect(redis=redis_url, store=store) as ids:
        ids.create("orders", step=100)
    program = [sys.executable, "-m", "tests.integration.first_calls", redis_url, store, call]
    done = subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    entered: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    functions = sum(map(len, entered.values()))
    print(f"{row}: {functions} functions in {len(entered)} files")
    for file, names in sorted(entered.items()):
        print(f"  {file}: {', '.join(sorted(names))}")
    section = FIGURES.partition("First call in a process")[2]
    listed = re.search(rf"^\| {re.escape(row)} \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    assert listed is not None
    # Nor much fewer: the table is out of date then.
    assert abs(functions - int(listed[1])) <= SLACK
    assert abs(len(entered) - int(listed[2])) <= 1
