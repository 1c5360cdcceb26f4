-- +goose Up

-- When the problem of a task was last changed by its pod: it is not more often than once in a few
-- seconds. pg_restore --clean of an older dump leaves the column in place, or this migration adds it
-- again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS problem_at timestamptz;

-- +goose Down
ALTER TABLE tasks DROP COLUMN problem_at;
