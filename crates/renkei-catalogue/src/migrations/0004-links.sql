-- Links to files for people without an account. The secret of one is not stored, its digest is.

CREATE TABLE link (
    id        TEXT   NOT NULL PRIMARY KEY,
    digest    TEXT   NOT NULL UNIQUE,
    owner     TEXT   NOT NULL,             -- the principal in whose name it is used
    serial    TEXT   NOT NULL,             -- of the certificate by which it was asked for; empty for none
    place     TEXT   NOT NULL,
    created   BIGINT NOT NULL,             -- times in seconds since 1970
    ends      BIGINT NOT NULL,
    most      BIGINT NOT NULL,             -- downloads; -1 for any number
    opens     BIGINT NOT NULL,
    downloads BIGINT NOT NULL,
    bytes     BIGINT NOT NULL,
    used      BIGINT NOT NULL              -- 0 for never
);
CREATE INDEX link_owner ON link (owner, created);
CREATE INDEX link_ends ON link (ends);
