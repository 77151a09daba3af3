"""The journal: every acknowledged change, durable and in order."""
