"""The pages of docs/reference that are generated are what the code says."""

from pathlib import Path

import pytest

from tests.reference import REMEDY, pages

PAGES = pages()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_what_its_generator_makes_of_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], f"docs/reference/{path.name} is out of date: {REMEDY}"
