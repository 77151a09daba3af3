"""`python -m dolake.cli` is `dolake`."""

from dolake.cli import main

main()
