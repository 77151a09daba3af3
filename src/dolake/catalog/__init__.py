"""Room 6, visible: the catalog that every engine asks where a table is, and the one place where a publish is seen.

rest.py speaks Iceberg's REST protocol; commit.py, create.py and register.py decide what the next metadata is, as pure
functions on plain dicts; base.py promises how the pointers are kept, sqlite.py keeps them.
"""
