"""The project's own tests, on each database and with each test runner; its migrations; its checks."""

from __future__ import annotations

import re

import pytest

import issuer
from tests.contrib.django.conftest import Shop

pytestmark = [pytest.mark.live, pytest.mark.covers("U.23")]

SUITE = ("test", "suite", "--pattern", "*.py")


def tags(shop: Shop) -> list[str]:
    """Return the tags of the project's store: none if it was not opened."""
    path = shop.folder / "issuer.sqlite3"
    if not path.exists():
        return []
    with issuer.connect(redis="none", store=f"sqlite:///{path}") as ids:
        return [tag.tag for tag in ids.tags()]


# ---------------------------------------------------------------------------------------------- its tests


@pytest.mark.usefixtures("production")
def test_its_tests_pass(any_shop: Shop) -> None:
    shown = any_shop.manage(*SUITE)
    assert re.search(r"Ran [3-9]\d tests", shown)
    assert tags(any_shop) == []


@pytest.mark.usefixtures("production")
def test_a_test_without_a_database_draws_too(shop: Shop) -> None:
    assert "Creating" not in shop.manage("test", "suite.rows.WithoutDatabase")
    assert tags(shop) == []


@pytest.mark.usefixtures("production")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_its_tests_pass_side_by_side(shop: Shop, start: str) -> None:
    shop.change("manage.py", "import sys\n", "import multiprocessing\nimport sys\n")
    shop.change("manage.py", "    os.environ", f'    multiprocessing.set_start_method("{start}")\n    os.environ')
    assert re.search(r"Ran [3-9]\d tests", shop.manage(*SUITE, "--parallel", "2"))
    assert tags(shop) == []


PYTEST = """
import pytest
import issuer
from orders.models import Order, Ticket

pytestmark = pytest.mark.django_db


def test_rows():
    assert Order.objects.create(customer="a").pk >= 1
    assert issuer.next("coupons") >= 1


def test_the_fixture(issuer_double):
    assert [each.pk for each in Ticket.objects.bulk_create([Ticket(), Ticket()])] == [1, 2]
    with issuer_double.store_away():
        pass


@pytest.mark.django_db(transaction=True)
def test_rows_that_are_committed():
    assert Order.objects.create(customer="a").pk >= 1


@pytest.mark.django_db(databases=["default", "eu"])
def test_both():
    Order.objects.using("eu").create(customer="a")
"""


@pytest.mark.usefixtures("production")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_pytest_runs_tests_of_rows(shop: Shop, workers: str) -> None:
    (shop.folder / "pytest.ini").write_text("[pytest]\nDJANGO_SETTINGS_MODULE = settings\n")
    (shop.folder / "test_rows.py").write_text(PYTEST)
    assert "4 passed" in shop.run("-m", "pytest", "-q", "-n", workers)
    assert tags(shop) == []


def test_an_issuer_that_was_open_before_the_tests_is_not_used_by_them(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    program = """
import issuer
from django.test.utils import get_runner
from django.conf import settings
first = issuer.next("orders")
failures = get_runner(settings)(pattern="*.py", verbosity=0).run_tests(["suite.rows.OneRow"])
from issuer.contrib.django import ids
print(first, failures, ids().next("orders"), issuer.next("orders"))
"""
    assert shop.shell(program) == "1 0 1001 1002"  # a new issuer, with a range of its own


def test_an_issuer_of_asyncio_that_was_open_before_the_tests_is_not_used_by_them(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    program = """
import asyncio
from django.test.utils import setup_test_environment
import issuer
from issuer.contrib.django import ids

async def default():
    return issuer.adefault()

async def drawn():
    return await issuer.adefault().next("orders")

loop = asyncio.new_event_loop()
first, earlier = loop.run_until_complete(drawn()), loop.run_until_complete(default())
setup_test_environment()
ids()
print(first, loop.run_until_complete(default()) is earlier)
loop.run_until_complete(earlier.close())
"""
    assert shop.shell(program) == "1 False"


SERVER = """
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.template import Template
from django.test.utils import instrumented_test_render
EmailBackend()
assert mail.outbox == []
Template._render = instrumented_test_render  # as django-debug-toolbar does
"""


@pytest.mark.usefixtures("production")
def test_no_issuer_and_no_setting_of_production_reaches_a_test(shop: Shop) -> None:
    program = """
from django.test.utils import setup_test_environment
from issuer.contrib.django import ids
from issuer.contrib.django.issuers import environment
earlier = ids("eu")
store = earlier.engine.config.store.url
setup_test_environment()
ids().create("a")
names = sorted(name for name in environment("default") if name.startswith("ISSUER_"))
print(ids().next("a"), ids("eu") is earlier, ids("eu").engine.config.store.url == store, names, end=" ")
ids("eu").close()
print(ids("eu").closed)
"""
    names = ["ISSUER_CONFIG", "ISSUER_REDIS_URL", "ISSUER_STORE_URL"]
    assert shop.shell(program) == f"1 False False {names} False"


def test_a_server_that_looks_like_a_test_draws_from_its_issuer(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    shop.change("settings.py", 'ALLOWED_HOSTS = ["*"]', 'ALLOWED_HOSTS = ["testserver"]')
    draw = "print(Order.objects.create(customer='a').pk, Note().number)"
    assert shop.shell(SERVER + draw) == "1 1"
    assert shop.shell("print(Order.objects.create(customer='b').pk)") == "2"


@pytest.mark.parametrize("name", ["_TestState", "saved_data"])
def test_a_django_with_other_names_fails_in_tests_alone(shop: Shop, name: str) -> None:
    shop.manage("migrate", "--run-syncdb")
    renamed = f"""
from pathlib import Path
import django.test.utils as utils
del utils._TestState
exec(compile(Path(utils.__file__).read_text().replace("{name}", "renamed"), utils.__file__, "exec"), vars(utils))
"""
    draw = "print(Order.objects.create(customer='a').pk, Note().number)"
    assert shop.shell(renamed + SERVER + draw) == "1 1"
    tests = """
from django.core.management import execute_from_command_line
from django.test.utils import setup_test_environment
from issuer.contrib.django import ids
setup_test_environment()
for draw in (ids, Note, lambda: Order.objects.create(customer="a")):
    try:
        draw()
    except Exception as error:
        print(type(error).__name__, error)
utils.teardown_test_environment()
execute_from_command_line(["manage.py", "test", "suite.rows.WithoutDatabase"])
"""
    given = "import django; django.setup()\nfrom orders.models import *\n"
    shown = shop.run("-c", given + renamed + tests, status=1, DJANGO_SETTINGS_MODULE="settings")
    assert shown.count("ImproperlyConfigured Django 5") + shown.count("ImproperlyConfigured Django 6") == 3
    assert "exceptions.ImproperlyConfigured: Django" in shown  # the check before the tests
    assert shop.shell("print(Order.objects.create(customer='b').pk)") == "2"


# ---------------------------------------------------------------------------------------------- migrations


def test_numbers_go_on_above_those_of_the_database(any_shop: Shop) -> None:
    any_shop.manage("migrate", "legacy", "0001")
    before = """
from django.db import connection
from django.db.migrations.loader import MigrationLoader
apps = MigrationLoader(connection).project_state(("legacy", "0001_initial")).apps
Book, Page, Word = (apps.get_model("legacy", name) for name in ("Book", "Page", "Word"))
"""
    insert = """
books = [Book.objects.create(title="a") for _ in range(5)]
pages = [Page.objects.create(book=books[n % 5]) for n in range(7)]
Word.objects.create(page=pages[6])
print(books[4].pk, pages[6].pk)
"""
    assert any_shop.shell(before + insert) == "5 7"
    shown = any_shop.manage("migrate", "--run-syncdb")
    assert "Created tag 'books'. Its first number is 6" in shown  # by a migration that inserts rows
    assert "Created tag 'pages'. Its first number is 8" in shown
    assert "Created tag" not in any_shop.manage("migrate", "--run-syncdb")
    go_on = """
from django.db import IntegrityError, connection, transaction
moved = [*Book.objects.filter(title__startswith="moved").order_by("id").values_list("id", flat=True)]
book = Book.objects.create(title="b")
page = Page.objects.create(book=book)
word = Word.objects.create(page=page)
big = Page.objects.create(id=2**40, book=book)
Word.objects.create(page=big)
assert Word.objects.get(page=2**40).page_id == big.pk
big.delete()
assert Word.objects.first().page_id == 7
try:
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("INSERT INTO legacy_book (title) VALUES ('c')")
except Exception as error:
    rejected = type(error).__name__
print(moved, book.pk, page.pk, rejected)
"""
    assert re.fullmatch(r"\[6, 7, 8, 9\] 10 8 (IntegrityError|OperationalError)", any_shop.shell(go_on))
    assert "No changes" in any_shop.manage("makemigrations", "legacy", "--check", "--dry-run")
    any_shop.manage("migrate", "legacy", "0001")
    back = """
from django.core.management.color import no_style
with connection.cursor() as cursor:  # as `manage.py sqlsequencereset` shows it
    for statement in connection.ops.sequence_reset_sql(no_style(), [Book]):
        cursor.execute(statement)
print(Book.objects.create(title="c").pk)
"""
    assert any_shop.shell(before + back) == "11"


def test_migrations_keep_the_options_of_the_field(shop: Shop) -> None:
    shop.manage("makemigrations", "orders")
    (migration,) = (shop.folder / "orders" / "migrations").glob("0001*.py")
    assert "issuer.contrib.django.IssuerField(primary_key=True, serialize=False, tag='orders')" in migration.read_text()
    assert "default=issuer.contrib.django.Next('codes', text=True)" in migration.read_text()
    shop.change(
        "orders/models.py",
        'IssuerField(tag="parcels", unique=True)',
        'IssuerField(tag="parcels", editable=True, null=True)',
    )
    shop.manage("makemigrations", "orders", "--name", "changed")
    text = (shop.folder / "orders" / "migrations" / "0002_changed.py").read_text()
    assert "issuer.contrib.django.IssuerField(editable=True, null=True, tag='parcels')" in text
    shop.manage("migrate")
    assert "No changes" in shop.manage("makemigrations", "--check", "--dry-run")


FILL = """
from django.db import migrations


def draw(apps, schema_editor):
    for note in apps.get_model("orders", "Note").objects.filter(bill=None):
        note.save(update_fields=["bill"])


class Migration(migrations.Migration):
    dependencies = [("orders", "0002_bill")]
    operations = [migrations.RunPython(draw, migrations.RunPython.noop)]
"""


def test_rows_that_exist_get_numbers_in_a_migration(shop: Shop) -> None:
    shop.manage("makemigrations", "orders")
    shop.manage("migrate")
    shop.shell("Note.objects.bulk_create([Note(), Note(), Note()])")
    old = "    number = models.BigIntegerField(default"
    field = '    bill = IssuerField(tag="bills", unique=True, null=True)\n'
    field += '    extra = models.BigIntegerField(default=Next("extras"))\n'
    shop.change("orders/models.py", old, field + old)
    shop.manage("makemigrations", "orders", "--name", "bill")
    (shop.folder / "orders" / "migrations" / "0003_fill.py").write_text(FILL)
    shop.change("orders/models.py", ", null=True", "")
    (shop.folder / "orders" / "migrations" / "0004_required.py").write_text(
        FILL.partition("def draw")[0]
        + "from issuer.contrib.django import IssuerField\n\n\nclass Migration(migrations.Migration):\n"
        '    dependencies = [("orders", "0003_fill")]\n'
        '    operations = [migrations.AlterField("Note", "bill", IssuerField(tag="bills", unique=True))]\n'
    )
    assert "No changes" in shop.manage("makemigrations", "--check", "--dry-run")
    shop.manage("migrate")
    assert shop.shell("print(sorted(Note.objects.values_list('bill', flat=True)), Note.objects.create().bill)") == (
        "[1, 2, 3] 4"
    )
    assert shop.shell("print(*Note.objects.order_by('bill').values_list('extra', flat=True))") == "1 1 1 2"


def test_another_tag_changes_no_table(shop: Shop) -> None:
    shop.manage("makemigrations", "orders")
    shop.manage("migrate")
    shop.change("orders/models.py", 'tag="orders"', 'tag="sales"')
    shop.manage("makemigrations", "orders", "--name", "sales")
    assert shop.manage("sqlmigrate", "orders", "0002").count("no-op") == 1
    assert "Created tag 'sales'. Its first number is 1" in shop.manage("migrate")


def test_a_missing_tag_is_an_error_outside_of_migrations(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    (shop.folder / "issuer.sqlite3").unlink()
    program = """
import issuer
try:
    Order.objects.create(customer="a")
except issuer.UnknownTag as error:
    print(error)
"""
    assert shop.shell(program).startswith("unknown tag 'orders' in sqlite:///")


MANAGER = """
class OnlyOpen(models.Manager):
    use_in_migrations = True

    def get_queryset(self):
        return OpenTickets(self.model, using=self._db).open()


class Ticket"""


def test_rows_that_a_manager_hides_have_numbers(shop: Shop) -> None:
    shop.change("orders/models.py", "\nclass Ticket", MANAGER)
    shop.change(
        "orders/models.py",
        "    objects = OpenTickets.as_manager()\n",
        "    objects = OnlyOpen()\n\n    class Meta:\n        base_manager_name = 'objects'\n",
    )
    shop.manage("migrate", "--run-syncdb")
    shop.shell("Ticket(id=500, open=False).save()")
    (shop.folder / "issuer.sqlite3").unlink()
    assert "Created tag 'numbered'. Its first number is 501" in shop.manage("migrate", "--run-syncdb")


def test_rows_of_each_database_with_the_issuer_have_numbers(shop: Shop) -> None:
    for alias in ("default", "eu"):
        shop.manage("migrate", "--run-syncdb", "--database", alias)
    shop.shell("Customer(id=900).save(using='eu')")
    (shop.folder / "issuer.sqlite3").unlink()
    assert "Created tag 'customers'. Its first number is 1\n" in shop.manage("migrate", "--run-syncdb")
    (shop.folder / "issuer.sqlite3").unlink()
    with (shop.folder / "settings.py").open("a") as settings:
        settings.write("\nISSUER_DATABASES = {}\n")
    assert "Created tag 'customers'. Its first number is 901\n" in shop.manage("migrate", "--run-syncdb")


def test_a_table_with_the_largest_number_gets_no_tag(shop: Shop) -> None:
    shop.manage("migrate", "--run-syncdb")
    shop.shell("Customer(id=2**63 - 1).save()")
    (shop.folder / "issuer.sqlite3").unlink()
    shown = shop.manage("migrate", "--run-syncdb", status=1)
    assert "The tag 'customers' was not created. The highest number in its tables is 9223372036854775807" in shown


INSERT = """
from django.apps import AppConfig, apps
from django.db.models.signals import post_migrate


def insert(using, **_):
    from orders.models import Order
    Order.objects.using(using).get_or_create(customer="first")


class OrdersApp(AppConfig):
    name = "orders"

    def ready(self):
        post_migrate.connect(insert, sender=apps.get_app_config("auth"))
"""


def test_other_apps_may_insert_rows_after_the_migrations(shop: Shop) -> None:
    (shop.folder / "orders" / "apps.py").write_text(INSERT)
    shown = shop.manage("migrate", "--run-syncdb")
    assert "Created tag 'orders'. Its first number is 1" in shown
    assert shop.shell("print(Order.objects.get().pk)") == "1"


def test_tags_are_created_with_their_options(shop: Shop) -> None:
    assert "Created tag 'codes'. Its first number is 100" in shop.manage("migrate", "--run-syncdb")
    assert shop.shell("print(Note().code)") == "N-00100"


# ---------------------------------------------------------------------------------------------- checks

WRONG = {
    "unknown": ('ISSUER = {"sotre": ""}', "issuer.E001", "no argument 'sotre'. Did you mean 'store'?"),
    "value": ('ISSUER = {"store": "memory://", "timeout": -1}', "issuer.E001", "timeout"),
    "none": ('ISSUER = {"store": None}', "issuer.E001", "store is None"),
    "no dictionary": ('ISSUER = "memory://"', "issuer.E001", "must be a dictionary"),
    "no servers": ("ISSUER = {}\nDEBUG = False", "issuer.E003", "ISSUER names no store, and DEBUG is False"),
    "same file": ('ISSUER = {"store": f"sqlite:///{BASE_DIR}/eu.sqlite3"}', "issuer.E007", "eu.sqlite3 is a database"),
    "alias": ('ISSUER_DATABASES = {"us": {}}', "issuer.E002", "no such alias, but default, eu"),
    "option": ('ISSUER_TAGS = {"codes": {"fromat": "N"}}', "issuer.E006", "Did you mean 'format'"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_settings_are_named(shop: Shop, wrong: str) -> None:
    setting, code, words = WRONG[wrong]
    with (shop.folder / "settings.py").open("a") as settings:
        settings.write(f"\n{setting}\n")
    shown = shop.manage("check", status=1)
    assert code in shown
    assert words in shown
    assert not (shop.folder / "issuer.sqlite3").exists()


def test_wrong_models_are_named(shop: Shop) -> None:
    shop.change("orders/models.py", 'tag="invoices"', 'tag=" invoices"')
    shop.change("orders/models.py", "models.BigIntegerField(default", "models.IntegerField(default")
    shown = shop.manage("check", status=1)
    assert "orders.Invoice.number: (issuer.E004)" in shown
    assert "orders.Plain: (issuer.W001) bulk_create of orders.Plain.objects" in shown
    assert "orders.Note.number: (issuer.W002)" in shown
    assert "orders.Ticket" not in shown
    assert "orders.Order" not in shown


@pytest.mark.parametrize("option", ['"restart": "yearly"', '"keyed": True'])
def test_a_unique_field_whose_tag_begins_again_is_named(shop: Shop, option: str) -> None:
    tags = ", ".join(f'"{tag}": {{{option}}}' for tag in ("orders", "invoices", "notes", "tickets"))
    with (shop.folder / "settings.py").open("a") as settings:
        settings.write(f"ISSUER_TAGS = {{{tags}}}\n")
    shown = shop.manage("check")
    assert (
        "orders.Invoice.number: (issuer.W004) The field is unique, and the numbers of 'invoices' begin again" in shown
    )
    assert "orders.Order.id: (issuer.W004)" in shown  # a primary key
    assert "orders.Note" not in shown.replace("orders.Note.number: (issuer.W002)", "")
    assert "orders.Ticket" not in shown  # has the text


def test_a_forgotten_app_is_named(shop: Shop) -> None:
    shop.change("settings.py", '    "issuer.contrib.django",\n', "")
    assert "Add 'issuer.contrib.django' to INSTALLED_APPS" in shop.manage("check", status=1)


def test_a_file_as_the_store_is_named_before_a_deployment(shop: Shop) -> None:
    assert "issuer.W003" in shop.manage("check", "--deploy", SHOP_DEBUG="0")
    shown = shop.manage("check", SHOP_DEBUG="0")
    assert "issuer.W003" not in shown
    assert "issuer.W004" not in shown  # the tags of its unique fields count on


def test_a_server_without_a_store_issues_no_number(shop: Shop) -> None:
    shop.change("settings.py", "ISSUER = {", "ISSUER = {} and {")
    program = """
from django.core.exceptions import ImproperlyConfigured
try:
    Order.objects.create(customer="a")
except ImproperlyConfigured as error:
    print(error)
"""
    assert "names no store, and DEBUG is False" in shop.shell(program, SHOP_DEBUG="0")
