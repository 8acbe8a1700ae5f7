"""The admin of orders, with their lines."""

from django.contrib import admin

from orders.models import Line, Order


class Lines(admin.TabularInline):
    """The lines of an order."""

    model = Line
    extra = 2


@admin.register(Order)
class Orders(admin.ModelAdmin):
    """Orders, with their numbers."""

    list_display = ("id", "customer")
    readonly_fields = ("id",)
    inlines = (Lines,)
