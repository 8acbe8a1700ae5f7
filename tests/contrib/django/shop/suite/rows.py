"""Numbers of rows: one at a time, many at once, inherited, copied, loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from itertools import chain, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from django.core import serializers
from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import IntegrityError, connection, transaction
from django.db.models import QuerySet
from django.db.models.signals import pre_save
from django.forms import modelform_factory
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from orders.models import Customer, Express, Invoice, Line, Note, Order, Plain, Rush, Shelf, Ticket

import issuer
from issuer.api.blocking import Issuer
from issuer.contrib.django import IssuerManager, ids


@contextmanager
def draws() -> Iterator[list[tuple[str, int]]]:
    """Yield a list of the draws in the block: the tag, and how many numbers."""
    made: list[tuple[str, int]] = []
    take, next = Issuer.take, Issuer.next

    def counted(self: Issuer, tag: str, n: int) -> list[int]:
        made.append((tag, n))
        return take(self, tag, n)

    def counted_one(self: Issuer, tag: str) -> int:
        made.append((tag, 1))
        return next(self, tag)

    with patch.object(Issuer, "take", counted), patch.object(Issuer, "next", counted_one):
        yield made


def order(**given: object) -> Order:
    """Return an order that is not saved, with a customer that no other order has."""
    order.count += 1
    return Order(**{"customer": f"customer {order.count}", **given})


order.count = 0


class OneRow(TestCase):
    def test_the_number_is_drawn_when_the_row_is_inserted(self) -> None:
        with draws() as made:
            first = order()
            first.full_clean()
            assert first.pk is None
            assert made == []
            with self.assertNumQueries(1) as queries:
                first.save()
        assert queries[0]["sql"].startswith("INSERT")
        assert made == [("orders", 1)]
        assert Order.objects.get().pk == first.pk

    def test_a_saved_row_keeps_its_number(self) -> None:
        first = Order.objects.create(customer="a")
        number = first.pk
        with draws() as made:
            first.note = "changed"
            with self.assertNumQueries(1) as queries:
                first.save()
            first.save(update_fields=["note"])
            Order.objects.only("id").get(pk=number).save()
            Order.objects.defer("note").get(pk=number).save()
            first.refresh_from_db()
        assert queries[0]["sql"].startswith("UPDATE")
        assert (made, first.pk, first.note) == ([], number, "changed")

    def test_a_given_number_is_kept_and_may_be_that_of_a_row(self) -> None:
        with draws() as made:
            Order(id=10**15, customer="a").save()
            Order(id=10**15, customer="b").save()
            Order.objects.create(id=2**63 - 1, customer="c")
            with pytest.raises(IntegrityError), transaction.atomic():
                Order.objects.create(id=10**15, customer="d")
        assert made == []
        assert [*Order.objects.order_by("id").values_list("id", "customer")] == [(10**15, "b"), (2**63 - 1, "c")]

    def test_get_or_create_draws_only_if_it_creates(self) -> None:
        with draws() as made:
            first, _ = Order.objects.get_or_create(customer="a")
            second, _ = Order.objects.update_or_create(customer="a", defaults={"note": "b"})
            third, _ = Order.objects.update_or_create(customer="c", defaults={"note": "b"})
        assert first.pk == second.pk
        assert third.pk > first.pk
        assert made == [("orders", 1)] * 2

    def test_a_copy_gets_a_number(self) -> None:
        first = Order.objects.create(customer="a")
        copy = Order.objects.get()
        copy.pk, copy.customer = None, "b"
        copy.save()
        again = Order.objects.get(customer="b")
        again.id, again.customer, again._state.adding = None, "c", True
        again.save()
        assert len({first.pk, copy.pk, again.pk}) == 3
        assert Order.objects.count() == 3

    def test_a_transaction_that_is_rolled_back_leaves_a_gap(self) -> None:
        lost = order()
        with transaction.atomic():
            lost.save()
            transaction.set_rollback(True)
        assert not Order.objects.exists()
        kept = order()
        kept.save()
        assert kept.pk > lost.pk

    def test_a_row_that_is_rejected_before_its_insert_takes_no_number(self) -> None:
        def reject(**_: object) -> None:
            raise ZeroDivisionError

        pre_save.connect(reject, sender=Order)
        self.addCleanup(pre_save.disconnect, reject, sender=Order)
        with draws() as made, pytest.raises(ZeroDivisionError):
            order().save()
        assert made == []

    def test_a_number_may_be_beside_the_primary_key(self) -> None:
        of = Order.objects.create(customer="a")
        with draws() as made, self.assertNumQueries(1):
            invoice = Invoice.objects.create(order=of)
        assert made == [("invoices", 1)]
        invoice.save()
        assert Invoice.objects.get().number == invoice.number
        assert Invoice.objects.create(order=of, number=10**12).number == 10**12

    def test_a_number_may_be_a_part_of_the_primary_key(self) -> None:
        first = Shelf.objects.create(room=1)
        rows = Shelf.objects.bulk_create([Shelf(room=1), Shelf(room=2)])
        assert {first.pk, *(each.pk for each in rows)} == {*Shelf.objects.values_list("pk", flat=True)}

    def test_an_update_of_a_query_draws_nothing(self) -> None:
        Order.objects.create(customer="a")
        with draws() as made:
            Order.objects.update(note="b")
            Order.objects.bulk_update(Order.objects.all(), ["note"])
        assert made == []

    def test_a_default_draws_when_the_object_is_created(self) -> None:
        with draws() as made:
            note = Note()
        assert made == [("notes", 1)]
        assert re.search(r"^N-\d{5}$", note.code)
        note.save()
        assert Note.objects.get().number == note.number

    def test_a_missing_tag_is_an_error_that_names_migrate(self) -> None:
        with (
            issuer.connect(redis="none", store="memory://") as other,
            issuer.set_default(other),
            patch("issuer.contrib.django.tags.testing", return_value=False),
        ):
            for draw in (order().save, Note, lambda: Order.objects.bulk_create([order(), order()])):
                with pytest.raises(issuer.UnknownTag, match=r"create it with `manage\.py migrate`"):
                    draw()


class CommandLine(TestCase):
    def test_a_command_has_the_numbers_of_the_double(self) -> None:
        first = Order.objects.create(customer="a").pk
        call_command("issuer", "configure", "orders", "--start", str(first + 1000), "--yes")
        assert Order.objects.create(customer="b").pk >= first + 1000
        with pytest.raises(CommandError, match=r"issuer next nothing: failed\. .*unknown tag 'nothing'"):
            call_command("issuer", "next", "nothing")
        with pytest.raises(CommandError, match=r"configure orders --start \d+: failed\. (?s:.*)give --yes"):
            call_command("issuer", "configure", "orders", "--start", str(first + 10**9))  # it asks

    def test_a_program_that_runs_a_command_gets_its_output_and_goes_on(self) -> None:
        last = Order.objects.create(customer="a").pk
        shown = StringIO()
        call_command("issuer", "next", "orders", stdout=shown)
        assert int(shown.getvalue()) != last
        with patch("sys.stdout", new_callable=StringIO) as shown:
            execute_from_command_line(["manage.py", "issuer", "next", "orders"])
        assert int(shown.getvalue()) != last


class WithoutDatabase(SimpleTestCase):
    def test_a_default_draws_without_a_database(self) -> None:
        assert Note().number >= 1
        assert issuer.next("coupons") >= 1

    async def test_a_coroutine_draws_from_the_double_too(self) -> None:
        async with issuer.adefault() as aids:
            assert await aids.next("coupons") != issuer.next("coupons")


class ManyRows(TestCase):
    def test_the_numbers_of_all_rows_are_drawn_at_once(self) -> None:
        made_of = [order() for _ in range(5000)]
        with draws() as made:
            rows = Order.objects.bulk_create(made_of)
        assert made == [("orders", 5000)]
        assert rows == made_of
        numbers = [row.pk for row in rows]
        assert sorted(set(numbers)) == numbers
        assert {*Order.objects.values_list("id", flat=True)} == {*numbers}

    def test_batches_share_a_draw(self) -> None:
        with draws() as made:
            Order.objects.bulk_create((order() for _ in range(100)), batch_size=7)
            Order.objects.bulk_create([])
        assert made == [("orders", 100)]

    def test_given_numbers_are_kept(self) -> None:
        with draws() as made:
            rows = Order.objects.bulk_create([order(id=10**15), order(), order(id=10**15 + 1), order()])
        assert made == [("orders", 2)]
        assert [rows[0].pk, rows[2].pk] == [10**15, 10**15 + 1]

    def test_an_object_that_is_given_twice_is_rejected(self) -> None:
        of = Order.objects.create(customer="a")
        with draws() as made, pytest.raises(issuer.InvalidArgument, match=r"orders\.Invoice: .* the same object twice"):
            Invoice.objects.bulk_create([Invoice(order=of)] * 2)
        assert made == []

    def test_numbers_beside_the_primary_key(self) -> None:
        of = Order.objects.create(customer="a")
        with draws() as made:
            rows = Invoice.objects.bulk_create([Invoice(order=of) for _ in range(20)])
        assert made == [("invoices", 20)]
        assert {*Invoice.objects.values_list("number", flat=True)} == {row.number for row in rows}

    def test_after_a_conflict_no_object_has_the_number_of_another_row(self) -> None:
        first = Order.objects.create(customer="a")
        target = {} if connection.vendor == "mysql" else {"unique_fields": ["customer"]}
        for options in ({"ignore_conflicts": True}, {"update_conflicts": True, "update_fields": ["note"], **target}):
            with self.subTest(options):
                again = Order(customer="a", note="again")
                rows = Order.objects.bulk_create([again, order(), order(id=10**14 + len(options))], **options)
                assert [row.pk for row in rows[:2]] == [None, None]
                assert rows[2].pk == 10**14 + len(options)
                assert Order.objects.get(customer="a").pk == first.pk
        assert Order.objects.get(customer="a").note == "again"
        assert Order.objects.count() == 5

    def test_managers_of_relations_and_querysets_of_the_project_draw_at_once(self) -> None:
        of = Order.objects.create(customer="a")
        with draws() as made:
            of.lines.bulk_create([Line(order=of, article="b") for _ in range(10)])
            of.lines.create(article="c")
            Ticket.objects.bulk_create([Ticket() for _ in range(10)])
            Ticket.objects.open().bulk_create([Ticket()])
            Rush.objects.bulk_create([Rush(customer=f"rush {n}") for n in range(10)])
        assert made == [("lines", 10), ("lines", 1), ("numbered", 10), ("numbered", 1), ("orders", 10)]
        assert isinstance(Order._meta.default_manager, IssuerManager)

    def test_a_manager_that_does_not_draw_at_once_draws_each_number(self) -> None:
        with draws() as made, patch("issuer.contrib.django.fields.databases", return_value={}):
            rows = Plain.objects.bulk_create([Plain(name="a") for _ in range(3)])
        assert made == [("numbered", 1)] * 3
        assert {*Plain.objects.values_list("id", flat=True)} == {row.pk for row in rows}

    async def test_coroutines_insert_in_a_thread(self) -> None:
        with draws() as made:
            one, more = await Order.objects.acreate(customer="a"), await Order.objects.abulk_create([order(), order()])
        assert made == [("orders", 1), ("orders", 2)]
        assert len({one.pk, *(each.pk for each in more)}) == 3


class Inheritance(TestCase):
    def test_each_table_of_a_child_has_its_own_number(self) -> None:
        with draws() as made, self.assertNumQueries(2):
            child = Express.objects.create(customer="a")
        assert made == [("orders", 1), ("parcels", 1)]
        found = Express.objects.get()
        assert (found.pk, found.id, found.parcel) == (child.pk, child.pk, child.parcel)
        assert Order.objects.get().express.pk == child.pk

    def test_a_child_of_an_existing_row(self) -> None:
        first = Order.objects.create(customer="a")
        child = Express(order_ptr=first)
        child.__dict__.update({name: value for name, value in first.__dict__.items() if name != "_state"})
        child.save()
        assert (child.pk, Order.objects.count()) == (first.pk, 1)

    def test_a_proxy_has_the_numbers_of_its_model(self) -> None:
        with draws() as made:
            Rush.objects.create(customer="a")
        assert made == [("orders", 1)]

    def test_models_of_an_abstract_model_share_its_tag(self) -> None:
        ticket, plain = Ticket.objects.create(), Plain.objects.create(name="a")
        assert ticket.pk != plain.pk


class Fixtures(TestCase):
    def load(self, rows: list[dict[str, object]]) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rows.json"
            path.write_text(json.dumps(rows))
            call_command("loaddata", path, verbosity=0)

    def test_given_numbers_are_loaded_and_missing_ones_are_drawn(self) -> None:
        with draws() as made:
            self.load(
                [
                    {"model": "orders.order", "pk": 77, "fields": {"customer": "a"}},
                    {"model": "orders.order", "fields": {"customer": "b"}},
                ]
            )
        assert made == [("orders", 1)]
        assert Order.objects.get(customer="a").pk == 77

    def test_dumped_rows_are_loaded_over_those_that_are_there(self) -> None:
        child = Express.objects.create(customer="a")
        Line.objects.create(order=child, article="b")
        text = serializers.serialize("json", [*Order.objects.all(), *Express.objects.all(), *Line.objects.all()])
        with draws() as made:
            for each in serializers.deserialize("json", text):
                each.save()
        assert (made, Order.objects.count(), Express.objects.get().parcel) == ([], 1, child.parcel)


class Forms(TestCase):
    def test_a_form_has_no_input_for_the_number(self) -> None:
        form = modelform_factory(Order, fields="__all__")({"customer": "a"})
        assert "id" not in form.fields
        assert form.save().pk == Order.objects.get().pk

    def test_the_admin_adds_and_changes_rows_with_lines(self) -> None:
        from django.contrib.auth.models import User

        self.client.force_login(User.objects.create_superuser("admin"))
        with draws() as made:
            assert self.client.get("/admin/orders/order/add/").status_code == 200
        assert made == []
        given = {"customer": "a", "note": "", "lines-TOTAL_FORMS": 2, "lines-INITIAL_FORMS": 0}
        lines = {"lines-0-article": "b", "lines-1-article": "c"}
        added = self.client.post("/admin/orders/order/add/", {**given, **lines})
        assert added.status_code == 302, added.content.decode()
        first = Order.objects.get()
        old = [*first.lines.order_by("id")]
        assert [line.article for line in old] == ["b", "c"]
        at = f"/admin/orders/order/{first.pk}/change/"
        self.assertContains(self.client.get(at), str(first.pk))
        changed = {**given, "customer": "d", "lines-TOTAL_FORMS": 3, "lines-INITIAL_FORMS": 2, **lines}
        for n, line in enumerate(old):
            changed |= {f"lines-{n}-id": line.pk, f"lines-{n}-order": first.pk}
        done = self.client.post(at, {**changed, "lines-0-article": "e", "lines-2-article": "f"})
        assert done.status_code == 302, done.content.decode()
        assert [line.article for line in first.lines.order_by("id")] == ["e", "c", "f"]
        assert Order.objects.get().customer == "d"


class Databases(TestCase):
    databases = ("default", "eu")

    def test_the_database_of_the_row_decides_from_which_issuer_it_draws(self) -> None:
        ids("eu").configure("customers", start=5000)
        here = [Customer.objects.create(region="us"), *Customer.objects.bulk_create([Customer(region="us")] * 1)]
        by_region, by_name = Customer(region="eu"), Customer(region="us")
        by_region.save()
        by_name.save(using="eu")
        there = [
            by_region,
            by_name,
            Customer.objects.using("eu").create(region="us"),
            *Customer.objects.using("eu").bulk_create([Customer(region="us"), Customer(region="eu")]),
        ]
        assert [each._state.db for each in here + there] == ["default"] * 2 + ["eu"] * 5
        assert all(each.pk < 5000 for each in here)
        assert all(each.pk >= 5000 for each in there)
        assert ids() is issuer.default()
        assert ids("eu") is not ids()

    def test_the_database_of_the_statement_decides_for_a_manager_of_the_project(self) -> None:
        def reject(**_: object) -> None:
            raise ZeroDivisionError

        ids("eu").configure("invoices", start=5000)
        invoice = Invoice(order=Order.objects.using("eu").create(customer="a"))
        pre_save.connect(reject, sender=Invoice)
        with pytest.raises(ZeroDivisionError):
            invoice.save(using="default")
        pre_save.disconnect(reject, sender=Invoice)
        QuerySet(Invoice, using="eu").bulk_create([invoice])
        assert Invoice.objects.using("eu").get().number == invoice.number >= 5000

    def test_a_router_is_asked_once_for_all_rows(self) -> None:
        ids("eu").configure("customers", start=5000)
        aliases = chain(["eu"], repeat("default"))
        router = type("Changing", (), {"db_for_write": lambda *_, **__: next(aliases)})
        with self.settings(DATABASE_ROUTERS=[router()]):
            Customer.objects.bulk_create([Customer(region="us"), Customer(region="us")])
            [here] = Customer.objects.bulk_create([Customer(region="us")])
        there = [*Customer.objects.using("eu").values_list("pk", flat=True)]
        assert [number >= 5000 for number in there] == [True, True]
        assert Customer.objects.using("default").get().pk == here.pk < 5000

    def test_a_manager_that_does_not_know_the_database_is_rejected(self) -> None:
        from django.core.exceptions import ImproperlyConfigured

        with self.assertRaisesMessage(ImproperlyConfigured, "IssuerQuerySet"):
            Plain.objects.using("eu").bulk_create([Plain(name="a")])


class Committed(TransactionTestCase):
    def test_a_flushed_database_still_has_tags(self) -> None:
        first = Order.objects.create(customer="a")
        call_command("flush", interactive=False, verbosity=0)
        assert Order.objects.create(customer="b").pk > first.pk

    def test_threads(self) -> None:
        from concurrent.futures import ThreadPoolExecutor

        def insert(n: int) -> int:
            try:
                return Order.objects.create(customer=f"thread {n}").pk
            finally:
                connection.close()

        if connection.vendor == "sqlite":
            self.skipTest("the database is in the memory of one thread")
        with ThreadPoolExecutor(8) as threads:
            assert len({*threads.map(insert, range(80))}) == 80
