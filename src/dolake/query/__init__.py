"""Read: SQL over the tables and what is not yet in them, at one moment, in a process of its own."""
