-- +goose Up

-- How the newest holds of the task's agent ended, which was stopped for sets of checkpoints, as a JSON
-- array; null if there were none. pg_restore --clean of an older dump leaves the column out, and this
-- migration adds it again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS holds jsonb;

-- +goose Down
ALTER TABLE tasks DROP COLUMN holds;
