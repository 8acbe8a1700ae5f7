"""An HTTP route is a row of the table and its handler: CONTRIBUTING says so, and here one is added."""

from pathlib import Path

import pytest

from tests.house.packaging.scratch import Scratch

pytestmark = pytest.mark.live

HANDLER = '''

async def age(service: Service, call: Request) -> Reply:
    """Show the time since the tag was created."""
    found = await service.ids.inspect(call.tag, timeout=call.timeout)
    return shown({"status": "ok", "created": found.store.created}, as_string=call.as_string)
'''
ROW = """    Route("GET", f"{_OF}/age", "age", "Show the time when the tag was created.", tags.age, READ, "Tag",
          query={"unit": member(str, "Unit of the time")}),
    Route("PATCH", _OF,"""
PROGRAM = """
from tests.doors.http.doors import Door, through

async def behave(door: Door) -> None:
    await door.ids.create("a")
    print((await door.good("GET", "/v1/tags/a/age"))["status"])
    print("/v1/tags/{tag}/age" in (await door.good("GET", "/openapi.json"))["paths"])

through(behave)
"""


def test_a_route_is_a_row_and_a_handler(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "copy")
    handlers = scratch.folder / "issuer/doors/web/tags.py"
    handlers.write_text(handlers.read_text(encoding="utf-8") + HANDLER, encoding="utf-8")
    scratch.replace("issuer/doors/web/routes.py", '    Route("PATCH", _OF,', ROW)
    assert scratch.run("-c", PROGRAM) == "ok\nTrue\n"
    scratch.check("tests/house/test_reference.py", "tests/doors/http/test_reference.py")
    page = (scratch.folder / "docs/reference/http.md").read_text(encoding="utf-8")
    assert "| [`GET /v1/tags/{tag}/age`](#age) | `read` | Show the time when the tag was created. |\n" in page
    assert "| query | `unit` | string | Unit of the time |\n" in page
