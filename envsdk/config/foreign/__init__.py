"""Files of other projects, translated into our keys.

A project is a `Dialect`: a table that says what becomes of each of its keys (`row.py`), and how its files are
recognized. `translation.py` applies the table.
"""
