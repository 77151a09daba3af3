"""Where tables' files are kept: bytes by location."""
