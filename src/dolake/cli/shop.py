"""A small shop that sells things while you watch: an endless stream of believable changes.

For the demo. Deterministic for a seed, and it keeps the true state of its tables, so that anybody can compare.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from dolake.changes import Change, Operation

_NAMES = ("Ada", "Björn", "Chloé", "Dilip", "Emeka", "Fatima", "Grete", "Hana", "Iris", "João", "Kenji", "Lena")
_PRODUCTS = ("lamp", "chair", "desk", "shelf", "rug", "vase", "clock", "mirror")
_PAID, _SENT, _CANCELLED = "paid", "sent", "cancelled"


class Shop:
    """Customers who order, orders that are paid, sent or cancelled, stock that shrinks."""

    def __init__(self, seed: int = 7) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a story, not a secret
        self.tables: dict[str, dict[str, dict[str, Any]]] = {"customers": {}, "orders": {}, "inventory": {}}
        self.change_count = 0

    def changes(self, count: int) -> Iterator[Change]:
        """The next so many changes."""
        end = self.change_count + count
        while self.change_count < end:
            yield self._next()

    def _next(self) -> Change:
        if len(self.tables["inventory"]) < len(_PRODUCTS):
            product = _PRODUCTS[len(self.tables["inventory"])]
            return self._insert("inventory", product, {"product_id": product, "quantity": 1000, "reorder_point": 50})
        if len(self.tables["customers"]) < 5 or self._random.random() < 0.1:
            number = len(self.tables["customers"]) + 1
            name = self._random.choice(_NAMES)
            return self._insert("customers", f"c{number}", {"id": f"c{number}", "name": name, "orders": 0})
        return self._random.choices([self._order, self._move_order, self._sell], weights=[50, 35, 15])[0]()

    def _order(self) -> Change:
        number = f"o{self.change_count}"
        customer = self._random.choice(list(self.tables["customers"]))
        row = {"id": number, "customer_id": customer, "amount": round(self._random.uniform(5, 500), 2), "status": "new"}
        return self._insert("orders", number, row)

    def _move_order(self) -> Change:
        orders = self.tables["orders"]
        if not orders:
            return self._order()
        number = self._random.choice(list(orders))
        if orders[number]["status"] == _CANCELLED:
            return self._change("DELETE", "orders", number, None)
        step = {"new": _PAID, _PAID: self._random.choice([_SENT, _CANCELLED])}.get(orders[number]["status"], _SENT)
        return self._change("UPDATE", "orders", number, orders[number] | {"status": step})

    def _sell(self) -> Change:
        product = self._random.choice(_PRODUCTS)
        row = self.tables["inventory"][product]
        left = row["quantity"] - self._random.randint(1, 5)
        return self._change("UPDATE", "inventory", product, row | {"quantity": left if left > 0 else 1000})

    def _insert(self, table: str, row_id: str, row: dict[str, Any]) -> Change:
        return self._change("INSERT", table, row_id, row)

    def _change(self, operation: Operation, table: str, row_id: str, after: dict[str, Any] | None) -> Change:
        rows = self.tables[table]
        before = rows.get(row_id)
        if after is None:
            del rows[row_id]
        else:
            rows[row_id] = after
        self.change_count += 1
        return Change(table, operation, row_id, after=after, before=before, sequence=self.change_count)
