-- Queued transfers. Written for PostgreSQL; SQLite reads BYTEA as BLOB.
-- Moments are milliseconds since 1970; 0 in `ended` is "not yet", and a moment that never comes is the largest number.

CREATE TABLE transfer (
    id        TEXT   NOT NULL PRIMARY KEY,  -- 32 hexadecimal digits
    owner     TEXT   NOT NULL,              -- the principal
    lane      TEXT   NOT NULL,              -- owner, from and to
    state     TEXT   NOT NULL,              -- as in `course`, for the indexes
    label     TEXT   NOT NULL,
    priority  BIGINT NOT NULL,
    submitted BIGINT NOT NULL,
    next_at   BIGINT NOT NULL,              -- when one that waits is looked at
    deadline  BIGINT NOT NULL,
    ended     BIGINT NOT NULL,
    runner    TEXT   NOT NULL,              -- the PoP that runs it, or nobody
    revision  BIGINT NOT NULL,              -- grows with each change
    digest    BYTEA  NOT NULL,              -- of what was handed in
    spec      BYTEA  NOT NULL,              -- what was handed in
    course    BYTEA  NOT NULL               -- where it stands
);
CREATE INDEX transfer_ready ON transfer (lane, priority DESC, submitted, id) WHERE state = 'queued';
CREATE INDEX transfer_due ON transfer (next_at) WHERE state = 'waiting';
CREATE INDEX transfer_running ON transfer (runner) WHERE state = 'running';
CREATE INDEX transfer_deadline ON transfer (deadline) WHERE ended = 0;
CREATE INDEX transfer_ended ON transfer (ended) WHERE ended > 0;
CREATE INDEX transfer_owner ON transfer (owner, submitted, id);
CREATE INDEX transfer_owner_open ON transfer (owner, submitted, id) WHERE ended = 0;
CREATE INDEX transfer_age ON transfer (submitted, id);
CREATE INDEX transfer_age_open ON transfer (submitted, id) WHERE ended = 0;

-- What a transfer still waits for; a row goes when that is done.
CREATE TABLE dependency (
    transfer TEXT NOT NULL,
    needs    TEXT NOT NULL,
    PRIMARY KEY (needs, transfer)
);

CREATE TABLE attempt (
    transfer TEXT   NOT NULL,
    number   BIGINT NOT NULL,
    detail   BYTEA  NOT NULL,
    PRIMARY KEY (transfer, number)
);

-- The credential it works with: secret.
CREATE TABLE credential (
    transfer TEXT  NOT NULL PRIMARY KEY,
    detail   BYTEA NOT NULL
);

-- Files that failed in the last attempt that went to its end.
CREATE TABLE failure (
    transfer TEXT   NOT NULL,
    number   BIGINT NOT NULL,
    detail   BYTEA  NOT NULL,
    PRIMARY KEY (transfer, number)
);
