"""Compare what the lake says in several places: journal, changes, state and key index. Nothing is changed.

    base.py      what is found, in the words that people and programs get
    moment.py    all tables, their indexes and the published position, seen at one moment
    files.py     the data files of a table, and which rows of them are deleted
    shapes.py    the columns of state and changes side by side, as DuckDB reads them (pure)
    database.py  DuckDB as a workshop: a few narrow tables, bounded memory
    loading.py   every change and every live row, with a checksum each, into the workshop
    history.py   the changes against themselves: positions, sequences, commit times
    journal.py   the changes against what the journal still keeps
    folding.py   the state against the last change of each key
    moves.py     keys that have moved, as far as the changes show it
    rows.py      how two rows differ, column by column
    index.py     the key index against the rows of the state
    run.py       all of it, table by table

From cli/verify.py; works on the folders of a lake, whether its server runs or not.
"""
