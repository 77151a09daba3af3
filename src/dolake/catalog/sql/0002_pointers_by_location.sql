-- Before an old metadata file goes: does any other name point at it? A file can be registered twice.
CREATE INDEX pointers_by_location ON pointers (metadata_location);
