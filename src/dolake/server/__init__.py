"""One process: the rooms joined behind one port, started and stopped in the direction of the data."""
