"""A table of its own for tags, one between, and an index."""

import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("shop", "0002_more_columns")]
    operations = [
        migrations.AlterField("Product", "code", models.UUIDField(default=uuid.uuid4)),
        migrations.CreateModel(
            name="Tag",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=40, unique=True)),
            ],
        ),
        migrations.AddField("Product", "tags", models.ManyToManyField(to="shop.tag")),
        migrations.AlterField("Product", "name", models.CharField(max_length=200, db_index=True)),
    ]
