-- +goose Up

-- Why the gitstore will never accept the checkpoint; empty while it may, or has.
ALTER TABLE checkpoints ADD COLUMN refused text NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE checkpoints DROP COLUMN refused;
