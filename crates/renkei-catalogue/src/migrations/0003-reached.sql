-- How far the last attempt of a transfer came.

ALTER TABLE transfer ADD COLUMN reached BYTEA;  -- encoded; none before the first attempt ended
