-- Where the files of a table or view lie, as a JSON list: what a purge of another one must leave alone.
-- Empty for what an older release entered, until its next commit: its metadata file tells.
ALTER TABLE pointers ADD COLUMN folders TEXT NOT NULL DEFAULT '[]';
CREATE INDEX pointers_managed ON pointers (is_managed) WHERE is_managed = 1;
