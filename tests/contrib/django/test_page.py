"""The page for Django: its commands and files make a project that runs, and its other code is right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contrib.django.conftest import Shop
from tests.house.test_pages import BLOCK, PAGES, as_pattern, commands

pytestmark = [pytest.mark.live, pytest.mark.covers("U.23")]

BLOCKS = BLOCK.findall(PAGES["docs/guide/django.md"])


def run(command: str, shop: Shop) -> str:
    """Run a command of the page in the folder in which the page is. Return what it has written."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=shop.folder,
        env=shop.variables | {"PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    return done.stdout


def test_the_page_makes_a_project_that_runs(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shown = 0
    for language, text in BLOCKS:
        name = re.match(r"# (\w+/\w+\.py)\n", text)
        if language == "sh" and "pip install" not in text:
            run(text.partition("cd shop\n")[0], shop)
            shop.folder /= "shop"
            run(text.partition("cd shop\n")[2], shop)
        elif language == "console":
            for command, expected in commands(text):
                printed = run(command, shop)
                assert re.fullmatch(as_pattern(expected), printed), f"$ {command}\n{printed}\ninstead of\n{expected}"
                shown += 1
        elif name:
            path = shop.folder / name[1]
            path.write_text((path.read_text() if "settings" in name[1] else "") + text)
    assert shown >= 8
    assert "no issues" in run("python -W error manage.py check", shop)


MODEL = """
from django.apps import apps
from django.db import models
from django.test.utils import isolate_apps
from issuer.contrib.django import IssuerField
with isolate_apps("orders"):
    found = {{"__name__": "orders.models", "models": models, "IssuerField": IssuerField}}
    exec({text!r}, found)
    for each in found.values():
        if isinstance(each, type) and issubclass(each, models.Model):
            assert not [problem for problem in each.check() if problem.is_serious()], each.check()
            assert each.objects.bulk_create([]) == []
"""


def test_the_other_code_of_the_page_is_right(shop: Shop) -> None:
    others = [text for language, text in BLOCKS if language == "python" and not text.startswith("# ")]
    settings = [text for text in others if text.startswith("ISSUER")]
    models = [text for text in others if text not in settings]
    assert (len(settings), len(models)) == (4, 7)
    with (shop.folder / "settings.py").open("a") as file:
        file.write("\n".join(settings))
    assert "issuer.E" not in shop.manage("check")
    for text in models:
        shop.shell(MODEL.format(text=text))


RECIPES = """
from django.test import TestCase
from billing.models import Bill, Invoice, Tenant


class RecipesTest(TestCase):
    def test_invoices(self):
        first, second = Invoice.objects.create(), Invoice.objects.create()
        self.assertRegex(first.number, r"^INV-[0-9]{4}-000001$")
        self.assertEqual(second.number, first.number[:-1] + "2")
        second.save()
        self.assertEqual(Invoice.objects.get(pk=second.pk).number, first.number[:-1] + "2")

    def test_tenants(self):
        acme, zeta = Tenant.objects.create(code="acme"), Tenant.objects.create(code="zeta")
        made = [Bill.objects.create(tenant=each).number for each in (acme, zeta, acme)]
        self.assertEqual(made, ["acme-0001", "zeta-0001", "acme-0002"])
"""


def test_the_recipes_of_the_page_number_invoices_and_the_bills_of_tenants(shop: Shop) -> None:
    [settings] = [text for _, text in BLOCKS if '"invoices": {"restart"' in text]
    models = [text for _, text in BLOCKS if "issuer.issue" in text]
    app = shop.folder / "billing"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "models.py").write_text("from django.db import models\n" + "\n".join(models))
    (app / "tests.py").write_text(RECIPES)
    with (shop.folder / "settings.py").open("a") as file:
        file.write(f'INSTALLED_APPS += ["billing"]\n{settings}')
    assert "Ran 2 tests" in shop.manage("test", "billing")
