"""Whether this machine can run a lake: each check says what it found and, where that will not do, what to type.

    base.py      what a finding is
    software.py  Python, packages, Java, the jar
    store.py     the store that the tables are in, where they are
    machine.py   memory, open files, clock, port
    home.py      the home's folder and its disk

From cli/doctor.py. Nothing here changes anything, but for a small file that measures the disk and is removed.
"""
