"""Docstrings of modules and classes say what a thing is, at the first reading."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INDIRECT = re.compile(r"(What|Which|Who|Whose|How|Whether|Where|When|Why)\b")


def test_no_module_or_class_is_introduced_by_an_indirect_question() -> None:
    files = [file for folder in ("issuer", "persistence") for file in (ROOT / folder).rglob("*.py")]
    things = [(file, each) for file in files for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    texts = [(file, ast.get_docstring(each)) for file, each in things if isinstance(each, ast.Module | ast.ClassDef)]
    assert [(file.name, text) for file, text in texts if text and INDIRECT.match(text)] == []
