"""What a lake must hold, computed from its journal alone: every table folded, change by change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from dolake.journal.reader import JournalReader
from dolake.wire.binary import decode_raw_batch

Event = dict[str, Any]


def events_in(home: Path) -> Iterator[Event]:
    """Every change that is durable, in order, with the stream it came in."""
    with JournalReader(home / "journal") as reader:
        for record in reader.read(reader.oldest()):
            for event in decode_raw_batch(record.payload).events:
                plain = msgspec.json.decode(msgspec.json.encode(event))
                yield plain | {"stream": str(record.stream), "epoch": record.epoch}


@dataclass
class Mirror:
    """Tables by name, rows by key, as the events say."""

    tables: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    types: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Path) -> Mirror:
        mirror = cls()
        for event in events_in(home):
            mirror.apply(event)
        return mirror

    def apply(self, event: Event) -> None:
        metadata = event.get("metadata") or {}
        rows = self.tables.setdefault(event["table"], {})
        if "schema" in metadata:
            types = self.types.setdefault(event["table"], {})
            types.update({column["name"]: column["type"] for column in metadata["schema"]})
        if "ddl" in metadata:
            self._apply_ddl(event["table"], metadata["ddl"])
        elif event["operation"] == "DELETE":
            rows.pop(event["rowId"], None)
        else:
            rows.pop(metadata.get("previousRowId", ""), None)
            rows[event["rowId"]] = event["after"]

    def _apply_ddl(self, table: str, ddl: dict[str, Any]) -> None:
        rows = self.tables[table]
        match ddl["action"]:
            case "truncate" | "drop":
                rows.clear()
            case "rename":
                self.tables[ddl["to"]] = self.tables.pop(table)
            case "rename_column":
                self.tables[table] = {
                    key: {ddl["to"] if name == ddl["column"] else name: value for name, value in row.items()}
                    for key, row in rows.items()
                }
            case "drop_column":
                for row in rows.values():
                    row.pop(ddl["column"], None)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows without what is null: a column that a row never had is null in it."""
        found = [
            {name: value for name, value in row.items() if value is not None} for row in self.tables[table].values()
        ]
        return sorted(found, key=repr)
