-- +goose Up

-- The tool calls of the newest attempt that wait for a person's answer, as a JSON array; null if there
-- are none. pg_restore --clean of an older dump leaves the column out, and this migration adds it again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS requests jsonb;

-- +goose Down
ALTER TABLE tasks DROP COLUMN requests;
