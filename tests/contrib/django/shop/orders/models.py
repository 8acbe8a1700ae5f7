"""Models with numbers of an issuer, in each way that Django has."""

from django.db import models

from issuer.contrib.django import IssuerField, IssuerQuerySet, Next


class Order(models.Model):
    """The number is the primary key."""

    id = IssuerField(tag="orders", primary_key=True)
    customer = models.CharField(max_length=100, unique=True)
    note = models.TextField(blank=True)


class Line(models.Model):
    """A foreign key to a model with a number, which the row has itself, too."""

    id = IssuerField(tag="lines", primary_key=True)
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines")
    article = models.CharField(max_length=100)


class Invoice(models.Model):
    """The number is beside the primary key."""

    number = IssuerField(tag="invoices", unique=True)
    order = models.ForeignKey(Order, models.CASCADE)


class Express(Order):
    """Inherits the table of orders, and has a number of its own."""

    parcel = IssuerField(tag="parcels", unique=True)


class Rush(Order):
    """The same table."""

    class Meta:
        proxy = True


class Numbered(models.Model):
    """A base without a table."""

    id = IssuerField(tag="numbered", primary_key=True)

    class Meta:
        abstract = True


class OpenTickets(IssuerQuerySet):
    """A queryset of the project."""

    def open(self) -> models.QuerySet:
        return self.filter(open=True)


class Ticket(Numbered):
    """A manager of the project, which draws in bulk."""

    open = models.BooleanField(default=True)
    objects = OpenTickets.as_manager()


class Plain(Numbered):
    """A manager of the project, which does not draw in bulk."""

    name = models.CharField(max_length=100)
    objects = models.Manager()


class Note(models.Model):
    """Defaults that draw."""

    number = models.BigIntegerField(default=Next("notes"), editable=False)
    code = models.CharField(max_length=20, default=Next("codes", text=True), editable=False)


class Customer(models.Model):
    """The database depends on the region."""

    id = IssuerField(tag="customers", primary_key=True)
    region = models.CharField(max_length=10)


class Shelf(models.Model):
    """The number is a part of the primary key."""

    pk = models.CompositePrimaryKey("room", "number")
    room = models.IntegerField()
    number = IssuerField(tag="shelves")
