-- +goose Up

-- How much room each kept spec takes, which counts for its namespace's limit; found by an index.
-- kept_at finds those that were left by tasks which never began. pg_restore --clean of an older
-- dump leaves the column in place, or this migration adds it again.
ALTER TABLE task_specs ADD COLUMN IF NOT EXISTS bytes bigint NOT NULL GENERATED ALWAYS AS (octet_length(spec) + 512) STORED;
CREATE INDEX IF NOT EXISTS task_specs_sizes ON task_specs (namespace) INCLUDE (bytes);
CREATE INDEX IF NOT EXISTS task_specs_by_time ON task_specs (kept_at, uid);

-- +goose Down
DROP INDEX task_specs_sizes;
DROP INDEX task_specs_by_time;
ALTER TABLE task_specs DROP COLUMN bytes;
