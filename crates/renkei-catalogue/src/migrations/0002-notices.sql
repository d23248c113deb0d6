-- Ends of transfers that are to be told.

ALTER TABLE transfer ADD COLUMN notify TEXT NOT NULL DEFAULT '';  -- where; empty for nowhere

-- A row goes when it was told, or given up.
CREATE TABLE notice (
    transfer TEXT   NOT NULL PRIMARY KEY,
    since    BIGINT NOT NULL,              -- when the transfer ended
    due      BIGINT NOT NULL,              -- when it is tried next
    failures BIGINT NOT NULL               -- tries in vain
);
CREATE INDEX notice_due ON notice (due);
