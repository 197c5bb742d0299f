"""Files of Trinity-RFT.

    merged file -> ${...} -> foreign/translation.py, by the table of keys.toml -> our keys

`dialect.py` says which files are Trinity's, and which of them envsdk has no way to run. The table holds in
those files alone; there our own keys may stand beside Trinity's.
"""
