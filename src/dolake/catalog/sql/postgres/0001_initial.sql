-- As SQLite has it after its step 3. Names sort by their bytes, whatever language the database speaks.
CREATE TABLE namespaces (
    key        TEXT COLLATE "C" PRIMARY KEY,
    parent     TEXT COLLATE "C" NOT NULL,
    properties TEXT NOT NULL
);
CREATE INDEX namespaces_by_parent ON namespaces (parent, key);

CREATE TABLE pointers (
    namespace         TEXT COLLATE "C" NOT NULL REFERENCES namespaces (key),
    name              TEXT COLLATE "C" NOT NULL,
    kind              TEXT NOT NULL CHECK (kind IN ('table', 'view')),
    uuid              TEXT NOT NULL,
    metadata_location TEXT NOT NULL,
    version           BIGINT NOT NULL,
    is_managed        INTEGER NOT NULL,
    folders           TEXT NOT NULL DEFAULT '[]',
    PRIMARY KEY (namespace, name)
);
-- By hash: a location may be longer than a page of an ordered index takes.
CREATE INDEX pointers_by_location ON pointers USING hash (metadata_location);
CREATE INDEX pointers_managed ON pointers (is_managed) WHERE is_managed = 1;

CREATE TABLE published (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    position   BIGINT NOT NULL,
    generation BIGINT NOT NULL,
    at_ms      BIGINT NOT NULL
);
INSERT INTO published VALUES (1, 0, 0, 0);

CREATE TABLE publishes (
    position BIGINT PRIMARY KEY,
    at_ms    BIGINT NOT NULL
);

CREATE TABLE answers (
    key      TEXT COLLATE "C" PRIMARY KEY,
    answer   BYTEA NOT NULL,
    until_ms BIGINT NOT NULL
);
CREATE INDEX answers_by_end ON answers (until_ms);

-- One row, which every writer locks first, so that writers take turns. `journal` is the one that the published row
-- counts, `server` the one with a pipeline that claimed the lake last; `moved_ms` says when the catalog went elsewhere.
CREATE TABLE lake (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    journal  TEXT NOT NULL,
    server   TEXT NOT NULL,
    moved_ms BIGINT NOT NULL
);
INSERT INTO lake VALUES (1, '', '', 0);

-- Each transaction leaves its name here, so that one whose answer was lost can be asked about. Who asks enters the name
-- as abandoned: a transaction that is still under way is waited for, and one that comes later finds its name taken.
CREATE TABLE transactions (
    name         TEXT COLLATE "C" PRIMARY KEY,
    is_abandoned BOOLEAN NOT NULL,
    at           TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE INDEX transactions_by_time ON transactions (at);
