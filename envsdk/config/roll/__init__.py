"""Files of ROLL, and ROLL's names in files of ours.

    merged file -> defaults.py composes -> ${...} -> translation.py, by the table of keys.py -> our keys

The table holds for every file; a row that is only for ROLL's files says so, where a name means something else
here. `tags.py` knows the tags that ROLL's documents name.
"""
