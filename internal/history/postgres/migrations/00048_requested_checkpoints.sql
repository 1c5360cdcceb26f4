-- +goose Up

-- How many of checkpoint_count a Checkpoint object has asked for: whoever may create those must not spend what
-- the task's agent is given. What was counted before stays spent. pg_restore --clean of an older dump leaves the
-- column out, and this migration adds it again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS requested_checkpoints bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE tasks DROP COLUMN requested_checkpoints;
