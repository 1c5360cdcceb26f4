-- +goose Up

-- Since when the code of a history that is being deleted may be gone: such a deletion is finished,
-- whoever comes back. pg_restore --clean of an older dump leaves the column in place, or this migration
-- adds it again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS code_deletion_since timestamptz;

-- Of the deletions that are under way, nobody knows.
UPDATE tasks SET code_deletion_since = deletion_since WHERE deletion_since IS NOT NULL AND code_deletion_since IS NULL;

-- +goose Down
ALTER TABLE tasks DROP COLUMN code_deletion_since;
