"""Models whose numbers came from the database."""

from django.db import models

from issuer.contrib.django import IssuerField


class Book(models.Model):
    """Was a BigAutoField."""

    id = IssuerField(tag="books", primary_key=True)
    title = models.CharField(max_length=100)


class Page(models.Model):
    """Was an AutoField, of 32 bits."""

    id = IssuerField(tag="pages", primary_key=True)
    book = models.ForeignKey(Book, models.CASCADE)


class Word(models.Model):
    """Refers to a number that had 32 bits."""

    page = models.ForeignKey(Page, models.CASCADE)
