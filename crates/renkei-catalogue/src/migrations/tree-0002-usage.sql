-- What is in the tree, by the names of owners; counted with each change at the home.
CREATE TABLE tree_usage (
    volume BIGINT NOT NULL,
    owner  BYTEA  NOT NULL,
    files  BIGINT NOT NULL,                -- files, directories and symbolic links
    bytes  BIGINT NOT NULL,                -- of files
    PRIMARY KEY (volume, owner)
) WITHOUT ROWID;
