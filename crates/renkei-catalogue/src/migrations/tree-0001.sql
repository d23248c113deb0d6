-- The trees of volumes. WITHOUT ROWID is for SQLite alone: there a table is its key.

CREATE TABLE tree_volumes (
    number BIGINT NOT NULL PRIMARY KEY,    -- stands for the volume in the other tables; never given twice
    id     BYTEA  UNIQUE,                  -- the volume's; none once it was removed
    seq    BIGINT NOT NULL,                -- the last record that the tree holds
    made   BIGINT NOT NULL,                -- the last change that was made here
    whole  BIGINT NOT NULL,                -- a copy is one from this record on
    coming BYTEA,                          -- how far its pages are, while they come; encoded
    shown  BIGINT                          -- under which number its nodes and names are; none for its own
);

CREATE TABLE tree_nodes (
    volume BIGINT NOT NULL,
    id     BIGINT NOT NULL,
    node   BYTEA  NOT NULL,                -- encoded
    PRIMARY KEY (volume, id)
) WITHOUT ROWID;

CREATE TABLE tree_names (
    volume BIGINT NOT NULL,
    dir    BIGINT NOT NULL,
    name   BYTEA  NOT NULL,
    node   BIGINT NOT NULL,
    PRIMARY KEY (volume, dir, name)
) WITHOUT ROWID;

CREATE TABLE tree_log (
    volume BIGINT NOT NULL,
    seq    BIGINT NOT NULL,
    record BYTEA  NOT NULL,                -- encoded
    PRIMARY KEY (volume, seq)
) WITHOUT ROWID;

CREATE TABLE tree_origins (
    volume BIGINT NOT NULL,
    origin BIGINT NOT NULL,
    taken  BIGINT NOT NULL,                -- its last change that the tree holds
    given  BIGINT NOT NULL,                -- the last of its node numbers that was given
    PRIMARY KEY (volume, origin)
) WITHOUT ROWID;

-- Changes made here that the log does not have yet.
CREATE TABLE tree_pending (
    volume BIGINT NOT NULL,
    number BIGINT NOT NULL,
    change BYTEA  NOT NULL,                -- encoded
    PRIMARY KEY (volume, number)
) WITHOUT ROWID;

-- The plain files of this site.
CREATE TABLE tree_held (
    volume BIGINT NOT NULL,
    node   BIGINT NOT NULL,
    held   BYTEA  NOT NULL,                -- encoded
    PRIMARY KEY (volume, node)
) WITHOUT ROWID;

CREATE TABLE tree_notes (
    volume BIGINT NOT NULL,
    key    TEXT   NOT NULL,
    value  BYTEA  NOT NULL,
    PRIMARY KEY (volume, key)
) WITHOUT ROWID;

-- At the home: what its plain files do not have yet.
CREATE TABLE tree_away (
    volume  BIGINT NOT NULL,
    node    BIGINT NOT NULL,
    version BIGINT NOT NULL,               -- the record that made it so
    origin  BIGINT NOT NULL,               -- the site that wrote it
    size    BIGINT NOT NULL,
    PRIMARY KEY (volume, node)
) WITHOUT ROWID;

-- In the order in which they were written.
CREATE INDEX tree_away_by_version ON tree_away (volume, version);

-- A node's names.
CREATE INDEX tree_names_of ON tree_names (volume, node);
