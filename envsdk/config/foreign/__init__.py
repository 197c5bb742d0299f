"""Files of other projects, translated into our keys.

A project is a `Dialect` (`dialect.py`), which an entry point in `envsdk.dialects` names. Its table,
`keys.toml`, says what becomes of each of its keys; `table.py` reads it and `translation.py` applies it.
"""
