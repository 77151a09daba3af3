"""Room 6, visible: the catalog that every engine asks where a table is, and the one place where a publish is seen.

rest.py speaks Iceberg's REST protocol; commit.py, create.py and register.py decide what the next metadata is, as pure
functions on plain dicts; base.py promises how the pointers are kept; sqlite.py and postgres.py keep them, by the
statements of sql_store.py; stores.py says which of them a home has, moving.py brings a catalog from one to the other.
"""
