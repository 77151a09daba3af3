"""The first version."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Maker",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=80)),
                ("country", models.CharField(max_length=2)),
                ("since", models.DateTimeField(auto_now_add=True)),
            ],
        ),
        migrations.CreateModel(
            name="Product",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("price", models.DecimalField(max_digits=10, decimal_places=2)),
                ("maker", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="shop.maker")),
                ("is_sold", models.BooleanField(default=False)),
                ("changed", models.DateTimeField(auto_now=True)),
                ("remark", models.TextField(default="")),
            ],
        ),
    ]
