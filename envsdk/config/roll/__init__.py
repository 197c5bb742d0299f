"""Files of ROLL, and ROLL's names in files of ours.

The table, `keys.toml`, holds for every file; a row that is only for ROLL's files says so, where a name means
something else here. `dialect.py` says which files are ROLL's. The other modules have the functions that rows
name.
"""
