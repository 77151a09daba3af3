"""What a DoLake table is, as pure rules."""
