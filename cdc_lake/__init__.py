"""cdc_lake: changes of the PostgreSQL family in Delta Lake and Iceberg, whole transactions, exactly once."""
