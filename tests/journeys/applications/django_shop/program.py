"""A shop in Django with its default settings: migrations, the admin, and transactions that read before they write."""

from __future__ import annotations

import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(1, str(HERE.parent))

from counting import Writes, main  # noqa: E402


def set_up(path: str) -> None:
    import django

    os.environ["SHOP_FILE"] = path
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    django.setup()


def begin(path: str, writes: Writes) -> None:
    """The first version of the shop, with some data."""
    set_up(path)
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.loader import MigrationLoader

    call_command("migrate", "shop", "0001", verbosity=0)
    for app in ("auth", "admin", "sessions"):
        call_command("migrate", app, verbosity=0)
    models = MigrationLoader(connection).project_state(("shop", "0001_initial")).apps
    maker, product = models.get_model("shop", "Maker"), models.get_model("shop", "Product")
    for number in range(20):
        writes.do(lambda number=number: maker.objects.create(name=f"maker {number}", country="NO"))
    for number in range(60):
        values = {
            "name": f"product {number}",
            "price": "12.50",
            "maker_id": number % 20 + 1,
            "is_sold": number % 3 == 0,
        }
        writes.do(lambda values=values: product.objects.create(**values))
    writes.do(User.objects.create_superuser, "admin", "admin@example.org", "secret")


def work(path: str, writes: Writes) -> None:
    """Migrate to the newest version, use the admin, and write as a web application does."""
    set_up(path)
    from django.core.management import call_command

    writes.do(lambda: call_command("migrate", verbosity=0))
    use_admin(writes)
    write_rows(writes)


def inspect(path: str, writes: Writes) -> None:
    """Print models for all tables of the file, and with the lines from the file beside it."""
    set_up(path)
    from django.core.management import call_command

    writes.do(lambda: call_command("inspectdb"))
    sys.stdout.write("# --- with the lines of the documentation\n")
    writes.do(lambda: exec((Path(path).parent / "lines.py").read_text(), {}))  # noqa: S102
    writes.do(lambda: call_command("migrate", verbosity=0))


def use_admin(writes: Writes) -> None:
    from django.test import Client
    from shop.models import Maker

    client = Client(raise_request_exception=True)

    def post(address: str, **values: Any) -> None:
        answer = client.post(address, values)
        assert answer.status_code == 302, (address, answer.status_code, answer.content[:2_000])

    writes.do(lambda: post("/admin/login/?next=/admin/", username="admin", password="secret"))
    for number in range(5):
        writes.do(lambda number=number: post("/admin/shop/maker/add/", label=f"from the admin {number}", country="SE"))
    for maker in Maker.objects.filter(country="SE"):
        writes.do(lambda key=maker.pk: post(f"/admin/shop/maker/{key}/change/", label="changed", country="DK"))
    gone = Maker.objects.filter(label="changed").first()
    if gone is not None:
        writes.do(lambda: post(f"/admin/shop/maker/{gone.pk}/delete/", post="yes"))


def write_rows(writes: Writes) -> None:
    from django.db import transaction
    from shop.models import Product, Tag

    def sell(number: int) -> None:
        with transaction.atomic():
            product = Product.objects.select_related("maker").get(pk=number % 60 + 1)
            product.price += 1
            product.is_sold = not product.is_sold
            product.bought_on = date(2026, 1, number % 28 + 1)
            product.save()
            product.tags.add(Tag.objects.get_or_create(name=f"tag {number % 7}")[0])

    for number in range(100):
        writes.do(sell, number)
    writes.do(lambda: Product.objects.bulk_create([Product(name=f"new {number}", price=1) for number in range(300)]))
    writes.do(lambda: Product.objects.filter(name__startswith="new 1").update(details={"size": 3, "words": ["a", "ø"]}))
    writes.do(lambda: Product.objects.filter(name__startswith="new 2").delete())


if __name__ == "__main__":
    main({"begin": begin, "work": work, "inspect": inspect})
