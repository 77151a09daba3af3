"""The settings about tables, as the rules that all readers of changes follow.

From the pipeline and the query process, which get the section `lake` from the server; to tables/rules.py's words.
"""

from __future__ import annotations

from dolake.settings.schema import DoLakeConfig, TableSettings
from dolake.tables.names import plain_table_name
from dolake.tables.rules import LakeRules, LayoutRules, ReadingRules, TableRules
from dolake.tables.schema import Inference
from dolake.tables.types import Field, column_name, parse_type

_NOTHING = TableSettings()


def lake_rules(lake: DoLakeConfig) -> LakeRules:
    """What holds for each table."""
    return LakeRules(
        default=_table_rules(lake, _NOTHING),
        tables={plain_table_name(name): _table_rules(lake, table) for name, table in lake.tables.items()},
        included=lake.include_tables,
        excluded=lake.exclude_tables,
    )


def archive_after_days(lake: DoLakeConfig, table: str) -> int:
    """After how many days partitions of this table move; not one of its rules, since it changes nothing for writers."""
    own = {plain_table_name(name): each.archive_after_days for name, each in lake.tables.items()}.get(table)
    return lake.archive_after_days if own is None else own


def _table_rules(lake: DoLakeConfig, table: TableSettings) -> TableRules:
    has_timestamps = lake.infer_timestamps if table.infer_timestamps is None else table.infer_timestamps
    declared = ((column_name(name), parse_type(type_)) for name, type_ in table.columns.items())
    return TableRules(
        reading=ReadingRules(
            declared=tuple(Field(name, type_) for name, type_ in declared if type_ is not None),
            inference=Inference(has_timestamps, lake.struct_fields_max),
            leaves_max=lake.columns_max,
            included=table.include_columns,
            excluded=table.exclude_columns,
            masks=tuple(table.mask.items()),
            mask_secret=lake.mask_secret,
        ),
        layout=LayoutRules(
            partition_by=_words(table.partition_by) or _words(lake.partition_by),
            sort_by=_words(table.sort_by),
            target_file_size_bytes=table.target_file_size_bytes,
            row_group_size=table.parquet_row_group_size or lake.parquet_row_group_size,
            compression=table.parquet_compression or lake.parquet_compression,
            format_version=table.format_version,
        ),
        rebuild_rows_max=lake.rebuild_rows_max if table.rebuild_rows_max is None else table.rebuild_rows_max,
        is_fail_stop=table.fail_stop,
    )


def _words(words: str | tuple[str, ...]) -> tuple[str, ...]:
    """One word may stand without brackets."""
    return words if isinstance(words, tuple) else (words,) if words else ()
