-- +goose Up

-- Records through this sequence are in what was spent, whether or not they are stored: a copy of the
-- database that had lost some was told what they had spent. pg_restore --clean of an older dump leaves the
-- column out, and this migration adds it again.
ALTER TABLE tasks ADD COLUMN IF NOT EXISTS spent_through bigint NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE tasks DROP COLUMN spent_through;
