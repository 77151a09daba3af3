"""Where changes are born: databases that are copied once and then followed, change by change.

base.py is the promise that runner.py relies on; sqlite/ keeps it for plain SQLite files.
"""
