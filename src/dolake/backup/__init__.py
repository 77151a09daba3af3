"""A whole lake in another folder, taken while the server runs, and the way back.

    manifest.py    what a backup holds: every file with its place, length and checksum; written last
    catalog_copy.py  the catalog at one moment, and every file that it names
    journal_copy.py  the journal up to what is durable, held against removal while it is copied
    copying.py     bytes from here to there, checked on the way
    take.py        a backup, in the order that makes it consistent
    restore.py     a home made from a backup, which looks like none until it is whole

From cli/backup.py; reads the files of a home as any other process may, and asks the server nothing.
"""
