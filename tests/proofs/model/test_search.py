"""All that may happen within small bounds keeps the promises."""

import ast
import hashlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from issuer.core.supply import local_buffer
from issuer.gateway.tag_scripts import Role
from issuer_persistence.records import DEFAULT_REFILL_AT
from tests.proofs.model.search import search
from tests.proofs.model.worlds import LARGE, SMALL

HERE = Path(__file__).parent
README = (HERE / "README.md").read_text(encoding="utf-8")

#: What no search imports.
WALKS = {"walk.py", "store_walk.py", "extension.py"}


# Nothing that the larger ones depend on can change unseen: the test after this one.
@pytest.mark.covers("0.9", "1.1", "1.3", "1.11", "N.6")
@pytest.mark.parametrize("name", [*SMALL, *(pytest.param(name, marks=pytest.mark.soak) for name in LARGE)])
def test_no_order_of_events_breaks_a_promise(name: str) -> None:
    found = search({**SMALL, **LARGE}[name])
    assert not found.harm, str(found)
    # The count shows that the search went where it should: a step that is no longer possible makes it smaller.
    assert f"| {name} | {found.states} |" in README, (
        f"tests/proofs/model/README.md: {name} has {found.states} states now"
    )


def searched() -> str:
    """Return the digest of all that decides what a search finds; comments, docstrings and imports count for nothing."""
    files = sorted(each for each in HERE.glob("*.py") if each.name not in WALKS and not each.name.startswith("test_"))
    texts = [each.read_text(encoding="utf-8") for each in files]
    texts += [inspect.getsource(local_buffer.threshold)]
    # From 3.12 on, ast.unparse writes other quotes around a text with fields.
    code = [ast.unparse(Deciding().visit(ast.parse(text))).replace('"', "'") for text in texts]
    code += [str(DEFAULT_REFILL_AT), str(Role)]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


class Deciding(ast.NodeTransformer):
    """Takes off what decides nothing."""

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        del node

    visit_ImportFrom = visit_Import  # noqa: N815 - the same

    def visit_Expr(self, node: ast.Expr) -> ast.Expr | ast.Pass:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if text else node


def test_the_larger_bounds_were_searched_since_the_model_was_changed() -> None:
    digest = searched()
    assert f"as of the model `{digest}`" in README, (
        "the model was changed: run `make soak K=tests/proofs/model` (a few minutes), put the counts that have changed "
        f"into its README.md, and there, after `as of the model`, {digest}"
    )


def test_a_fault_costs_no_less_than_the_bound_that_is_watched() -> None:
    """Two segments a fault is what the design allows: it does happen."""
    world = SMALL["what one fault costs"]
    assert search(replace(world, gap=world.gap - 1)).harm.startswith("GAP 4 lost by 1 ")
