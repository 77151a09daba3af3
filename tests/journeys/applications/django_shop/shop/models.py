"""The shop's tables in their newest version."""

import uuid

from django.db import models


class Maker(models.Model):
    label = models.CharField(max_length=120)
    country = models.CharField(max_length=2)
    since = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.label


class Tag(models.Model):
    name = models.CharField(max_length=40, unique=True)


class Product(models.Model):
    name = models.CharField(max_length=200, db_index=True)
    price = models.DecimalField(max_digits=12, decimal_places=3)
    maker = models.ForeignKey(Maker, null=True, on_delete=models.CASCADE)
    is_sold = models.BooleanField(default=False)
    changed = models.DateTimeField(auto_now=True)
    bought_on = models.DateField(null=True)
    weight = models.FloatField(default=0.5)
    code = models.UUIDField(default=uuid.uuid4)
    details = models.JSONField(null=True)
    photo = models.BinaryField(null=True)
    tags = models.ManyToManyField(Tag)
