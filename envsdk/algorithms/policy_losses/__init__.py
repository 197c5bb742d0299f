"""The policy losses that ship, one module per family; found by `pg_variant` through entry points."""
