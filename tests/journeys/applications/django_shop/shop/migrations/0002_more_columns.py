"""Columns that come, go and change, for which Django makes the table anew; and a change of the rows."""

import uuid

import django.db.models.deletion
from django.db import migrations, models


def give_codes(apps, _schema_editor) -> None:
    for product in apps.get_model("shop", "Product").objects.all():
        product.code = uuid.uuid4()
        product.save(update_fields=["code"])


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [
        migrations.RenameField("Maker", "name", "label"),
        migrations.AlterField("Maker", "label", models.CharField(max_length=120)),
        migrations.RemoveField("Product", "remark"),
        migrations.AlterField("Product", "price", models.DecimalField(max_digits=12, decimal_places=3)),
        migrations.AlterField(
            "Product",
            "maker",
            models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, to="shop.maker"),
        ),
        migrations.AddField("Product", "bought_on", models.DateField(null=True)),
        migrations.AddField("Product", "weight", models.FloatField(default=0.5)),
        migrations.AddField("Product", "code", models.UUIDField(null=True)),
        migrations.AddField("Product", "details", models.JSONField(null=True)),
        migrations.AddField("Product", "photo", models.BinaryField(null=True)),
        migrations.RunPython(give_codes, migrations.RunPython.noop),
    ]
