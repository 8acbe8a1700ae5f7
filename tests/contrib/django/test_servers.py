"""The project as users run it: behind gunicorn and uvicorn, by its command, and as the page for Django makes it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contrib.django.conftest import Shop
from tests.house.test_pages import BLOCK, PAGES, as_pattern, commands
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.covers("U.23")]

GUNICORN = "gunicorn --workers 2 --bind 127.0.0.1:{port} --worker-class {kind} wsgi:application"
SERVERS = {
    "sync": (f"{GUNICORN} --preload", "place"),
    "gthread": (f"{GUNICORN} --preload --threads 4", "place"),
    # Without --preload: Django's connections are bound to threads, which gevent replaces after Django was imported.
    "gevent": (GUNICORN, "place"),
    "uvicorn": ("uvicorn --workers 2 --port {port} asgi:application", "aplace"),
}
REQUESTS = 60


@pytest.mark.parametrize("kind", SERVERS)
def test_processes_of_a_server_draw_different_numbers(shop: Shop, redis_url: str, kind: str) -> None:
    shop.environment = {"SHOP_REDIS": redis_url, "SHOP_DEBUG": "0"}
    shop.manage("migrate", "--run-syncdb")
    line, view = SERVERS[kind]
    port = free_port()
    log = shop.folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", *line.format(port=port, kind=kind).split()],
            cwd=shop.folder,
            env=shop.variables,
            stdout=output,
            stderr=output,
        )
    try:

        def request(n: int) -> dict[str, int]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{view}/{n}", timeout=60) as reply:
                found: dict[str, int] = json.load(reply)
                return found

        until(lambda: request(-1), 60, ignoring=(OSError,))
        with ThreadPoolExecutor(8) as threads:
            replies = [*threads.map(request, range(REQUESTS))]
        for name in ("order", "coupon"):
            assert len({reply[name] for reply in replies}) == REQUESTS
        assert max(reply["order"] for reply in replies) <= REQUESTS + 100
    finally:
        server.send_signal(signal.SIGTERM)
        ended = server.wait(60)
    assert ended in (0, -signal.SIGTERM)
    assert "Traceback" not in log.read_text()


def test_the_command_has_the_settings_of_the_project(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    assert shop.manage("issuer", "next", "orders") == "1\n"
    assert shop.manage("issuer", "configure", "orders", "--start", "50", "--yes")
    assert shop.shell("print(Order.objects.create(customer='a').pk)") == "50"
    assert "unknown tag 'nothing'" in shop.manage("issuer", "next", "nothing", status=3)
    shop.manage("issuer", "--database", "eu", "create", "nothing", "--start", "7")
    assert shop.manage("issuer", "--database", "eu", "next", "nothing") == "7\n"


def test_a_signal_reaches_the_command(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    port = free_port()
    line = [sys.executable, "manage.py", "issuer", "serve", "--http", f"127.0.0.1:{port}"]
    with subprocess.Popen(line, cwd=shop.folder, env=shop.variables, stderr=subprocess.PIPE, text=True) as server:
        until(lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5), 60, ignoring=(OSError,))
        server.send_signal(signal.SIGINT)
        assert server.wait(60) in (0, 130)
        assert server.stderr is not None
        assert "Traceback" not in server.stderr.read()


def test_the_command_rejects_a_client_in_place_of_a_url(shop: Shop) -> None:
    with (shop.folder / "settings.py").open("a") as settings:
        settings.write("\nimport redis\nISSUER['redis'] = redis.Redis()\n")
    assert "the command line needs a URL as redis" in shop.manage("issuer", "tags", status=1)


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
