"""Addresses of the project."""

from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.urls import path
from orders.models import Order

import issuer


def place(request: HttpRequest, customer: str) -> JsonResponse:
    """Insert an order, and draw a number without a row."""
    return JsonResponse({"order": Order.objects.create(customer=customer).pk, "coupon": issuer.next("coupons")})


async def aplace(request: HttpRequest, customer: str) -> JsonResponse:
    """Do the same as a coroutine."""
    order = await Order.objects.acreate(customer=customer)
    return JsonResponse({"order": order.pk, "coupon": await issuer.adefault().next("coupons")})


urlpatterns = [path("admin/", admin.site.urls), path("place/<customer>", place), path("aplace/<customer>", aplace)]
