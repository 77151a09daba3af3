-- Namespaces by their full key: the parts joined by U+001F, so that a prefix finds all below one.
CREATE TABLE namespaces (
    key        TEXT PRIMARY KEY,
    parent     TEXT NOT NULL,
    properties TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX namespaces_by_parent ON namespaces (parent, key);

-- Tables and views share one space of names.
CREATE TABLE pointers (
    namespace         TEXT NOT NULL REFERENCES namespaces (key),
    name              TEXT NOT NULL,
    kind              TEXT NOT NULL CHECK (kind IN ('table', 'view')),
    uuid              TEXT NOT NULL,
    metadata_location TEXT NOT NULL,
    version           INTEGER NOT NULL,
    is_managed        INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;

-- One row: how far the whole lake is published, and which pipeline may publish.
CREATE TABLE published (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    position   INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL
);
INSERT INTO published VALUES (1, 0, 0, 0);

-- When the lake reached each position: what a pin to a position or a moment is looked up in.
CREATE TABLE publishes (
    position INTEGER PRIMARY KEY,
    at_ms    INTEGER NOT NULL
);

-- Answers kept for clients that ask again with the same Idempotency-Key.
CREATE TABLE answers (
    key      TEXT PRIMARY KEY,
    answer   BLOB NOT NULL,
    until_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX answers_by_end ON answers (until_ms);
