"""Makers can be changed in the admin."""

from django.contrib import admin

from shop.models import Maker

admin.site.register(Maker)
