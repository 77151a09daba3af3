"""Written: the Spark process that turns the journal's changes into Iceberg tables."""
