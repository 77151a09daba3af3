"""What a DoLake table is, as pure rules."""

from dolake.tables.metadata import create_append_snapshot, create_table_metadata
from dolake.tables.partitions import (
    PartitionField,
    PartitionSpec,
    create_bucket_partition_spec,
    create_composite_partition_spec,
    create_day_partition_spec,
    create_hour_partition_spec,
    create_identity_partition_spec,
    create_month_partition_spec,
    create_truncate_partition_spec,
    create_year_partition_spec,
)

__all__ = [
    "PartitionField",
    "PartitionSpec",
    "create_append_snapshot",
    "create_bucket_partition_spec",
    "create_composite_partition_spec",
    "create_day_partition_spec",
    "create_hour_partition_spec",
    "create_identity_partition_spec",
    "create_month_partition_spec",
    "create_table_metadata",
    "create_truncate_partition_spec",
    "create_year_partition_spec",
]
