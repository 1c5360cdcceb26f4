-- +goose Up

-- Since when the history of a task is being deleted: its code goes before its rows, and no task may
-- adopt what has lost its code. pg_restore --clean of an older dump leaves the column in place, or
-- this migration adds it again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS deletion_since timestamptz;
CREATE INDEX IF NOT EXISTS tasks_in_deletion ON tasks (id) WHERE deletion_since IS NOT NULL;

-- +goose Down
DROP INDEX tasks_in_deletion;
ALTER TABLE tasks DROP COLUMN deletion_since;
